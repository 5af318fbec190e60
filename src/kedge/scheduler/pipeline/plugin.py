"""The `Filter` and `Score` protocols. A new plugin is a file with a subclass, and a line in `plugins`.

An instance serves one shape of pods on one snapshot. `shape_state` keeps the vectors and decides when each instance
computes; `explanation`, `preemption` and the scheduling cycle read the class attributes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from kedge.scheduler.queue.events import ANYTHING, ClusterEvent
from kedge.scheduler.state.columns import EVERY, Bools, Ints, Rows, as_rows
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.shapes import PodShape
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally, TallyRule

Weights = Mapping[str, int]


class ShapeContext(NamedTuple):
    """The arguments of `for_shape`."""

    snapshot: Snapshot
    shape: PodShape
    use_tally: Callable[[TallyRule], PodTally]
    """A count of placed pods, kept current while the shape is in use."""


class AttemptInputs(NamedTuple):
    """Inputs of one attempt that are neither in the snapshot nor in the shape."""

    blocked_zones: tuple[str, ...] = ()
    """Zones in which the tenant's quotas leave too little for the pod, in order."""
    excluded: frozenset[str] = frozenset()
    """Nodes that refused the pod and are not tried for now."""


NO_INPUTS = AttemptInputs()


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a node is not feasible. `detail` is the resource, the zone, the topology key or the policy, if any."""

    reason: str
    detail: str = ""
    label: str = field(default="", compare=False)
    unblocked_by: ClusterEvent = field(default=ANYTHING, compare=False)
    preemptible: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return " ".join(part for part in (self.label, self.detail) if part)


# -- filters ---------------------------------------------------------------------------------------


class Filter(Protocol):
    """Keeps a shape of pods off some nodes. Subclass one of the four kinds below."""

    reason: ClassVar[str]
    """Its reason code in records, events and metrics."""
    label: ClassVar[str]
    """For messages such as "0/3 nodes: 2 taint"."""
    unblocked_by: ClassVar[ClusterEvent]
    """The events after which a pod that it kept off a node may pass."""
    preemptible: ClassVar[bool] = False
    """Whether evicting pods from the node can make it pass."""
    detail: str = ""

    @classmethod
    @abstractmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Filter]:
        """The instances that a shape needs: none if the filter cannot fail for it."""

    @abstractmethod
    def mask(self, rows: Rows) -> Bools:
        """The rows that pass. Rows without a node may have any value."""

    def failures(self) -> Iterable[tuple[Blocker, Bools]]:
        """For an explanation: each cause, with the rows that it blocks."""
        return ((self.blocker(self.detail), ~self.mask(EVERY)),)

    def failures_if_empty(self) -> Iterable[tuple[Blocker, Bools]]:
        """The same if no pod were on any node. None for a filter whose answer follows pods, quotas or refusals."""
        return ()

    @classmethod
    def blocker(cls, detail: str = "") -> Blocker:
        return Blocker(cls.reason, detail, cls.label, cls.unblocked_by, cls.preemptible)


class NodeFilter(Filter):
    """Depends on the node object alone: its mask is computed again only for nodes that changed."""

    def failures_if_empty(self) -> Iterable[tuple[Blocker, Bools]]:
        return self.failures()


class ClaimFilter(Filter):
    """Depends on one node and the claims on it: checked row by row as claims change."""

    by_requests: ClassVar[bool] = False
    """Whether preemption can check it from the resources and ports of claims, without changing the snapshot."""

    def passes(self, node: NodeRow) -> bool:
        """One row. Override it with plain integers where decisions per second matter."""
        return bool(self.mask(as_rows((node.row,)))[0])


class PodFilter(Filter):
    """Depends on pods on other nodes too. It keeps its own mask, `ok`."""

    ok: Bools

    @abstractmethod
    def rebuild(self) -> None:
        """Compute the mask of all rows."""

    @abstractmethod
    def update(self, rows: list[int]) -> Ints | slice | None:
        """Follow changed claims on `rows`. The rows that changed in the mask; None if none did."""

    def mask(self, rows: Rows) -> Bools:
        answer: Bools = self.ok[rows]
        return answer


class AttemptFilter(Filter):
    """Depends on the inputs of the attempt."""

    @abstractmethod
    def begin(self, inputs: AttemptInputs) -> None:
        """Use these inputs for the next masks. Called again when nodes change."""


# -- scores ----------------------------------------------------------------------------------------

POINTS_MAX = 100


class Score(Protocol):
    """Prefers some feasible nodes, 0 to 100 points each, in integers. Subclass one of the two kinds below."""

    weights: ClassVar[Weights]
    """By the names that policies use: the default weights."""

    @classmethod
    @abstractmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Score | None:
        """The instance that a shape needs; None if all nodes get 0 points. At least one of its weights is not 0."""

    @abstractmethod
    def parts(self, rows: Ints, feasible: Bools) -> Mapping[str, Ints]:
        """For an explanation: points by name on some rows, before weighing."""


class RowScore(Score):
    """Depends on one node and the claims on it."""

    @abstractmethod
    def all(self) -> Ints:
        """The weighted points of every row."""

    @abstractmethod
    def row(self, node: NodeRow) -> int:
        """The weighted points of one row, in plain integers: every bind computes this."""


class RelativeScore(Score):
    """Is set in proportion to the feasible nodes, as kube-scheduler normalises scores. It has one name."""

    about_pods: ClassVar[bool] = False
    """Whether it changes with claims, and not only with nodes."""
    idle_points: ClassVar[int] = 0
    """The points of every node while it is not active."""
    weight: int

    @property
    def active(self) -> bool:
        """Whether nodes may differ in it."""
        return True

    @abstractmethod
    def rebuild(self) -> None:
        """Compute everything from the snapshot."""

    def update(self, rows: list[int]) -> None:
        """Follow changed claims on `rows`."""

    @abstractmethod
    def points(self, feasible: Bools) -> Ints:
        """Points of each feasible row, any value for others. The same array while nothing changed."""

    def parts(self, rows: Ints, feasible: Bools) -> Mapping[str, Ints]:
        (name,) = self.weights
        if self.active:
            return {name: self.points(feasible)[rows]}
        return {name: np.full(len(rows), self.idle_points, np.int64)}
