"""The snapshot: a columnar table of nodes and the claims on each. `decide` reads it.

Changes of caches and the scheduler's own assumptions update it in small steps; it never reads a clock or the network.
The state of each shape of pods is kept here, and repaired for the rows that changed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from kedge.api.conditions import is_true
from kedge.api.views import ContainerImage, NodeView, PodView, Taint
from kedge.api.views.base import Labels
from kedge.errors import InvariantBroken
from kedge.limits import Limits
from kedge.placement.predicates import SUSPECT
from kedge.placement.resources import CPU, MEMORY, PODS, node_allocatable
from kedge.scheduler.state.columns import Bools, ChangeLog, Column, Ids, Ints, grown
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.shapes import NO_LABELS, PodRequest, ShapeKey, request_of
from kedge.scheduler.state.tallies import CountedPods, Tallies

AMOUNT_MAX = 2**60
"""The largest amount in a column. Larger claims and requests are stored as one more, which never fits; larger
capacities as this. So the sum of two stays inside 64 bits, a pod that passes the mask always fits, and a pod that fits
is rejected only by a node with more than 2**60 bytes (or thousandths of a CPU) claimed."""
SCORED_MAX = 2**49
"""The largest amount in a score: ten thousand times it stays inside 64 bits. Scores above it are coarser."""
_CAPACITY_MIN = 64
_RESOURCES_MIN = 64
"""Columns of resources below which none are dropped: each has 16 bytes a node."""
_EDITS_MAX = 4
"""Nodes added or removed between two decisions before their order is built again."""
NAME = "metadata.name (field)"
"""The column of the nodes' names. No label has such a key."""


class SnapshotClaim(msgspec.Struct, frozen=True, gc=False):
    """One pod, as it is counted on one node."""

    node: str
    request: PodRequest
    pods: CountedPods


class Snapshot:
    """Nodes as rows, their properties as columns."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._rows: dict[str, NodeRow] = {}
        self._by_row: list[NodeRow | None] = [None] * _CAPACITY_MIN
        self._free = list(range(_CAPACITY_MIN))
        self._claims: dict[str, SnapshotClaim] = {}
        self._columns: dict[str, Column] = {}
        self._names: list[str] = []
        self._all_names: tuple[str, ...] | None = None
        """The same as a tuple; None if it changed since."""
        self._order: Ints | None = None
        self._edits: list[tuple[int, int]] = []
        """Edits of `_names` since the order was built: a position, and the row inserted there, or -1."""
        self._places: Ints = np.zeros(0, np.int64)
        self.capacity = _CAPACITY_MIN
        self.resources: dict[str, int] = {CPU: 0, MEMORY: 1, PODS: 2}
        """The row of each resource in `offered` and `claimed`. One that only pods name has none."""
        self._resources_most = _RESOURCES_MIN
        """With more than this, the columns that no node needs are dropped."""
        self.offered: Ints = np.zeros((3, self.capacity), np.int64)
        self._claimed: Ints = np.zeros((3, self.capacity), np.int64)
        self.scored_offered: Ints = np.zeros((2, self.capacity), np.int64)
        """CPU and memory on offer, cut at `SCORED_MAX`."""
        self._scored_claimed: Ints = np.zeros((2, self.capacity), np.int64)
        self._unwritten: dict[int, None] = {}
        """Rows whose claims are not in the two columns yet: few decisions read whole columns."""
        self.exists: Bools = np.zeros(self.capacity, np.bool_)
        self.cordoned: Bools = np.zeros(self.capacity, np.bool_)
        self.suspect: Bools = np.zeros(self.capacity, np.bool_)
        self.terminating: Bools = np.zeros(self.capacity, np.bool_)
        self.nodes_with_images = 0
        self._images: dict[str, dict[int, int]] = {}
        """Bytes by image and row."""
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self.taints: Ids = np.zeros(self.capacity, np.int32)
        """The id of each row's set of taints in `taint_sets`."""
        self.tallies = Tallies(self.capacity)
        self.node_log = ChangeLog(self._limits.scheduler_changes_max)
        self.claim_log = ChangeLog(self._limits.scheduler_changes_max)
        self.layout = 0
        """Incremented when a node is added or removed, or its labels, taints or images change."""
        self.version = 0
        """Incremented with every change: a decision can be explained only at its own version."""
        self.repairs = 0
        """Rows that were repaired one by one, for any shape."""
        self.explanations = 0
        self.states: OrderedDict[ShapeKey, Any] = OrderedDict()
        """The state of each shape, the last used at the end. Only `decide` writes and reads it."""
        self.last_state: Any = None
        """The last used state: replicas arrive one after another, and skip the lookup."""

    # -- reading

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def node_count(self) -> int:
        return len(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """Every node, by name: the order of explanations."""
        if self._all_names is None:
            self._all_names = tuple(self._names)
        return self._all_names

    def order(self) -> Ints:
        """The row of each node, by name. It does not depend on the order of arrival."""
        order = self._order
        if order is None or self._edits:
            if order is not None and len(self._edits) <= _EDITS_MAX:
                for place, row in self._edits:
                    order = np.delete(order, place) if row < 0 else np.insert(order, place, row)
            else:
                rows = self._rows
                order = np.fromiter((rows[name].row for name in self._names), np.int64, len(self._names))
            self._order, self._edits = order, []
            self._places = np.zeros(self.capacity, np.int64)
            self._places[order] = np.arange(len(order))
        return order

    def place_of(self, row: int) -> int:
        """The position of a row in the last `order`."""
        place: int = self._places.item(row)
        return place

    def places(self) -> Ints:
        """The inverse of `order`: the position of each row."""
        self.order()
        return self._places

    @property
    def claimed(self) -> Ints:
        """Claims by resource and row."""
        if self._unwritten:
            self._write_claims()
        return self._claimed

    @property
    def scored_claimed(self) -> Ints:
        """Claimed CPU and memory as scores count them: a container without a request counts with a minimum."""
        if self._unwritten:
            self._write_claims()
        return self._scored_claimed

    def at(self, row: int) -> NodeRow:
        node = self._by_row[row]
        if node is None:
            raise InvariantBroken(f"row {row} is free")
        return node

    def peek(self, row: int) -> NodeRow | None:
        """The node of a row, if there is one."""
        return self._by_row[row]

    def find(self, name: str) -> NodeRow | None:
        """A node that exists."""
        node = self._rows.get(name)
        return node if node is not None and node.offered is not None else None

    def claim(self, uid: str) -> SnapshotClaim | None:
        return self._claims.get(uid)

    def claims_on(self, node: str) -> tuple[str, ...]:
        """The uids of the pods with a claim on a node, in order of arrival."""
        found = self._rows.get(node)
        return tuple(found.claims) if found is not None else ()

    def column(self, key: str) -> Column:
        """The column of a label, or of the nodes' names; made at its first use."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column(key, self.capacity)
            self._fill(column)
        return column

    @property
    def label_keys_crowded(self) -> bool:
        """Whether pods have named more label keys than the limit, most of them pods that are gone."""
        most = self._limits.scheduler_label_keys_max
        return len(self._columns) > most or self.tallies.keys_crowded(most)

    def forget_label_keys(self) -> None:
        """Drop every column; it is made again at its next use. No shape may be in use: shapes hold columns."""
        self._columns.clear()
        self.tallies.mention_again()

    def nodes_with(self, image: str) -> tuple[list[int], list[int]]:
        """The rows of the nodes that have an image, and its bytes on each."""
        found = self._images.get(image, {})
        return list(found), list(found.values())

    def statistics(self) -> dict[str, int]:
        return {
            "kedge_scheduler_nodes": self.node_count,
            "kedge_scheduler_claims": len(self._claims),
            "kedge_scheduler_shapes": len(self.states),
            "kedge_scheduler_tallies": self.tallies.count,
            "kedge_scheduler_label_keys": len(self._columns) + self.tallies.key_count,
            "kedge_scheduler_changes_total": self.claim_log.end + self.node_log.end,
            "kedge_scheduler_repairs_total": self.repairs,
            "kedge_scheduler_explanations_total": self.explanations,
        }

    # -- nodes

    def put_node(self, view: NodeView, revision: int = 0) -> bool:
        """Add or update a node. False if nothing relevant changed, as when only a heartbeat was written."""
        node = self._rows.get(view.name) or self._new_row(view.name)
        row, labels, taints = node.row, view.labels, view.spec.taints
        node.revision = revision
        offered = node_allocatable(view)
        flags = (view.spec.unschedulable, is_true(view.status.conditions, SUSPECT), view.terminating)
        came = node.offered is None
        moved = came or labels != node.labels or taints != node.taints
        if (
            not moved
            and node.uid == view.uid
            and offered == node.offered
            and view.status.images == node.images
            and flags == (self.cordoned[row], self.suspect[row], self.terminating[row])
        ):
            return False
        node.uid = view.uid
        self._offer(node, offered)
        self._put_images(node, view.status.images)
        self.cordoned[row], self.suspect[row], self.terminating[row] = flags
        if moved:
            node.labels, node.taints = labels, taints
            self.taints[row] = self._taint_id(taints)
            for column in self._columns.values():
                column.set(row, _label(node, column.key))
                if len(column.values) > 4 * self.capacity:
                    self._fill(column)
            self.layout += 1
        if came:
            self.exists[row] = True
            place = bisect_left(self._names, node.name)
            self._names.insert(place, node.name)
            self._all_names = None
            self._edit(place, row)
        self.node_log.append(row)
        self.version += 1
        return True

    def remove_node(self, name: str) -> bool:
        """Remove a node. Its claims stay, and count again if it returns. False if there is none."""
        node = self.find(name)
        if node is None:
            return False
        row = node.row
        self._offer(node, {})
        self._put_images(node, ())
        node.offered, node.labels, node.taints, node.uid = None, NO_LABELS, (), ""
        self.exists[row] = self.cordoned[row] = self.suspect[row] = self.terminating[row] = False
        self.taints[row] = 0
        for column in self._columns.values():
            column.set(row, None)
        place = bisect_left(self._names, name)
        del self._names[place]
        self._all_names = None
        self._edit(place, -1)
        self.layout += 1
        self.node_log.append(row)
        self.version += 1
        self._free_row(node)
        return True

    def _edit(self, place: int, row: int) -> None:
        if len(self._edits) <= _EDITS_MAX:  # with more the order is built again
            self._edits.append((place, row))

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Set the labels of a namespace: affinity terms may select namespaces by them."""
        self.tallies.put_namespace(name, Labels(labels))
        self.version += 1

    def remove_namespace(self, name: str) -> None:
        self.tallies.put_namespace(name, None)
        self.version += 1

    # -- claims

    def add_claim(self, uid: str, node: str, pod: PodRequest | PodView) -> None:
        """Count a pod on a node, bound or assumed. An earlier claim of the pod is replaced."""
        request = pod if isinstance(pod, PodRequest) else request_of(pod, placed=True)
        had = self._claims.get(uid)
        if had is not None:
            if had.node == node and had.request == request:
                return
            self.remove_claim(uid)
        target = self._rows.get(node) or self._new_row(node)
        pods = self.tallies.class_of(request)
        self._claims[uid] = SnapshotClaim(node, request, pods)
        target.claims[uid] = None
        self._charge(target, request, 1)
        self.tallies.place(pods, target.row)
        self.claim_log.append(target.row)
        self.version += 1

    def remove_claim(self, uid: str) -> bool:
        """Remove a pod's claim. False if it has none."""
        claim = self._claims.pop(uid, None)
        if claim is None:
            return False
        node = self._rows[claim.node]
        del node.claims[uid]
        self._charge(node, claim.request, -1)
        self.tallies.take_away(claim.pods, node.row)
        self.tallies.forget_empty(claim.request, claim.pods)
        self.claim_log.append(node.row)
        self.version += 1
        self._free_row(node)
        return True

    def _charge(self, node: NodeRow, request: PodRequest, sign: int) -> None:
        claimed, scored, requirements = node.claimed, node.scored, request.requirements
        for resource, amount in requirements.requests.items():
            total = claimed.get(resource, 0) + sign * amount
            if total:
                claimed[resource] = total
            else:
                claimed.pop(resource, None)
        cpu, memory = requirements.scored
        scored[0] += sign * cpu
        scored[1] += sign * memory
        self._unwritten[node.row] = None

    def _write_claims(self) -> None:
        for row in self._unwritten:
            node = self._by_row[row]
            claimed, scored = (node.claimed, node.scored) if node is not None else ({}, (0, 0))
            for resource, column in self.resources.items():
                total = claimed.get(resource, 0)
                self._claimed[column, row] = total if total <= AMOUNT_MAX else AMOUNT_MAX + 1
            self._scored_claimed[0, row] = min(scored[0], SCORED_MAX)
            self._scored_claimed[1, row] = min(scored[1], SCORED_MAX)
        self._unwritten.clear()

    # -- rows

    def _new_row(self, name: str) -> NodeRow:
        if not self._free:
            self._grow()
        row = heapq.heappop(self._free)
        node = self._rows[name] = NodeRow(name, row)
        self._by_row[row] = node
        return node

    def _free_row(self, node: NodeRow) -> None:
        if node.offered is not None or node.claims:
            return
        del self._rows[node.name]
        self._by_row[node.row] = None
        heapq.heappush(self._free, node.row)

    def _grow(self) -> None:
        old, self.capacity = self.capacity, self.capacity * 2
        for name in (
            "offered", "_claimed", "scored_offered", "_scored_claimed", "exists", "cordoned", "suspect", "terminating",
            "taints",
        ):  # fmt: skip
            setattr(self, name, grown(getattr(self, name), self.capacity))
        for column in self._columns.values():
            column.ids = grown(column.ids, self.capacity)
        self.tallies.grow(self.capacity)
        self._by_row.extend([None] * (self.capacity - old))
        self._free = list(range(old, self.capacity))
        self._order = None
        self.layout += 1

    def _add_resources(self, added: Collection[str], offered: Collection[str]) -> None:
        """Make columns for the resources of `offered` that a node is the first to offer."""
        if len(self.resources) + len(added) > self._resources_most:
            self._drop_resources(offered)
            self._resources_most = max(_RESOURCES_MIN, 2 * (len(self.resources) + len(added)))
        for resource in added:
            self.resources[resource] = len(self.resources)
        more = np.zeros((len(added), self.capacity), np.int64)
        self.offered = np.vstack([self.offered, more])
        self._claimed = np.vstack([self._claimed, more])
        for node in self._rows.values():
            if any(resource in node.claimed for resource in added):  # pods may name a resource before a node offers it
                self._unwritten[node.row] = None

    def _drop_resources(self, offered: Collection[str]) -> None:
        """Drop the columns of resources that no node offers any more. `offered`: those of a node that changes."""
        used = {CPU, MEMORY, PODS, *offered, *(each for node in self._rows.values() for each in node.offered or ())}
        kept = [each for each in self.resources if each in used]
        columns = [self.resources[each] for each in kept]
        self.offered, self._claimed = self.offered[columns], self._claimed[columns]
        self.resources = {each: column for column, each in enumerate(kept)}

    def _offer(self, node: NodeRow, offered: Mapping[str, int]) -> None:
        row = node.row
        if added := [resource for resource in offered if resource not in self.resources]:
            self._add_resources(added, offered)
        self.offered[:, row] = 0
        for resource, amount in offered.items():
            self.offered[self.resources[resource], row] = min(amount, AMOUNT_MAX)
        self.scored_offered[:, row] = (
            max(0, min(offered.get(CPU, 0), SCORED_MAX)),
            max(0, min(offered.get(MEMORY, 0), SCORED_MAX)),
        )
        node.offered = offered

    def _put_images(self, node: NodeRow, images: tuple[ContainerImage, ...]) -> None:
        if images == node.images:
            return
        for name in (name for image in node.images for name in image.names):
            rows = self._images.get(name, {})
            rows.pop(node.row, None)
            if not rows:
                self._images.pop(name, None)
        for image in images:
            for name in image.names:
                self._images.setdefault(name, {})[node.row] = image.size_bytes
        self.nodes_with_images += bool(images) - bool(node.images)
        node.images = images
        self.layout += 1

    def _fill(self, column: Column) -> None:
        """Fill a column from the nodes: at first, and when most of its values belong to deleted nodes."""
        column.clear(self.capacity)
        for node in self._rows.values():
            if node.offered is not None:
                column.set(node.row, _label(node, column.key))

    def _taint_id(self, taints: tuple[Taint, ...]) -> int:
        # The time at which a taint was added is dropped: with it every node would have its own set.
        stripped = tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in taints)
        found = self._taint_ids.get(stripped)
        if found is None:
            if len(self.taint_sets) > 4 * self.capacity:
                self._compact_taints()
            found = self._taint_ids[stripped] = len(self.taint_sets)
            self.taint_sets.append(stripped)
        return found

    def _compact_taints(self) -> None:
        """Drop sets of taints that no node has."""
        kept = np.unique(np.append(self.taints, 0))  # the empty set stays the first
        sets = [self.taint_sets[i] for i in kept.tolist()]
        self.taints = np.searchsorted(kept, self.taints).astype(np.int32)
        self.taint_sets, self._taint_ids = sets, {taints: i for i, taints in enumerate(sets)}


def _label(node: NodeRow, key: str) -> str | None:
    return node.name if key == NAME else node.labels.get(key)


def snapshot_of(
    nodes: Iterable[NodeView],
    claims: Iterable[tuple[str, str, PodRequest | PodView]] = (),
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
    limits: Limits | None = None,
) -> Snapshot:
    """A snapshot of nodes and (uid, node, pod) claims, as for a recheck."""
    snapshot = Snapshot(limits)
    for name, labels in (namespaces or {}).items():
        snapshot.put_namespace(name, labels)
    for node in nodes:
        snapshot.put_node(node)
    for uid, node_name, pod in claims:
        snapshot.add_claim(uid, node_name, pod)
    return snapshot
