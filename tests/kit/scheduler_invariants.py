"""Invariants of the scheduler: accounts balance, gangs are whole, no pod is forgotten.

They read committed state, never a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from tests.kit import scheduler_model as model
from tests.kit.committed import State

from kedge.api.objects import Object
from kedge.keys import Key
from kedge.placement.ledger import ClaimState, Ledger
from kedge.placement.predicates import first_misfit
from kedge.placement.resources import Units, add, node_allocatable, pod_requests, shortages, to_units
from kedge.sim.cluster import Commit
from kedge.sim.kernel import Simulation

Wrong = Iterator[tuple[str, str]]
NODES = ("node-a", "node-b", "node-c")
ZONES = {"node-a": "zone-a", "node-b": "zone-b", "node-c": "zone-b"}
PODS = tuple(f"web-{n}" for n in range(8))
GANG = ("duo-0", "duo-1")
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
QUOTA = Key("ZoneQuota.kedge.dev", "default", "zones")
RECORD = Key("Reservation.kedge.dev", "default", "duo")
OTHER = "other-scheduler"


class Accounts:
    """Accounts balance at every commit, and no commit overcommits."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._nodes_of: dict[str, str] = {}
        self._used: dict[str, Units] = {}
        self._generations: dict[str, str] = {}
        """The incarnation of the quota or node in `_used`."""
        self._committed: frozenset[str] = frozenset()

    def __call__(self, commit: Commit) -> Wrong:
        if all(key.kind in ("Event", "Lease.coordination.k8s.io", "Operation.kedge.dev") for key in commit.keys):
            return
        state = State(commit.store)
        yield from self._one_node_each(state)
        yield from self._ledgers_match_the_claims(state)
        yield from self._never_overfull(state)
        yield from self._quotas_are_sums(state)
        yield from self._gangs_are_whole(state)

    def _one_node_each(self, state: State) -> Wrong:
        """A pod uid is bound to one node for ever, and has a claim on at most one."""
        for found in state.of("Pod").values():
            node_name = found.view.spec.node_name
            if node_name and self._nodes_of.setdefault(found.uid, node_name) != node_name:
                yield "two nodes", f"{found.key} moved from {self._nodes_of[found.uid]} to {node_name}"
        seen: dict[str, str] = {}
        for name, ledger in state.live_ledgers().items():
            for uid in ledger.claims:
                if seen.setdefault(uid, name) != name:
                    yield "two nodes", f"{uid} has claims on {seen[uid]} and {name}"

    def _ledgers_match_the_claims(self, state: State) -> Wrong:
        """A ledger holds bound pods, reservations and unreleased claims, and nothing else."""
        reserved: dict[str, str] = {}
        for found in state.of("Reservation.kedge.dev").values():
            spec = found.view.spec
            if spec.pod.uid and reserved.setdefault(spec.pod.uid, spec.node_name) != spec.node_name:
                yield "two reservations", f"{spec.pod.name} is reserved on {reserved[spec.pod.uid]} too"
        pods = {found.uid: found for found in state.of("Pod").values()}
        for name, ledger in state.live_ledgers().items():
            total = add(*(claim.requests for claim in ledger.claims.values()))
            if total != ledger.allocated:
                yield "ledger", f"{name}: the sum of claims is {total}, the ledger has {ledger.allocated}"
            for uid, claim in ledger.claims.items():
                holder = pods.get(uid)
                if claim.state is ClaimState.RESERVED:
                    if reserved.get(uid) != name:
                        yield "orphan", f"{name} keeps a place for {claim.name} that was not reserved"
                elif holder is None:
                    if uid not in self._nodes_of:
                        yield "leak", f"{name} holds {claim.name}, which never was bound"
                elif holder.view.spec.node_name != name or holder.view.finished:
                    yield "leak", f"{name} holds {claim.name}, which is on {holder.view.spec.node_name!r}"
            for uid, bound in pods.items():
                view = bound.view
                if view.spec.node_name != name or view.finished or uid in ledger.claims:
                    continue
                if state.of("Node")[name].created <= self._bound_on(bound, name):
                    yield "missing", f"{bound.key} runs on {name} without its claim"

    @staticmethod
    def _bound_on(found: Object, name: str) -> int:
        proved: int = msgspec.json.decode(found.metadata.annotations["kedge.dev/bind"])["provedOn"][f"Node/{name}"]
        return proved

    def _never_overfull(self, state: State) -> Wrong:
        after: dict[str, tuple[str, Units, Units]] = {}
        for name, ledger in state.live_ledgers().items():
            owner = state.of("Node")[name]
            after[name] = owner.uid, ledger.allocated, node_allocatable(owner.view)
        for found in state.of("ZoneQuota.kedge.dev").values():
            for zone, use in found.view.status.zones.items():
                if zone in found.view.spec.zones:
                    hard = to_units(found.view.spec.zones[zone].hard)
                    after[f"{found.key}/{zone}"] = found.uid, to_units(use.used), hard
        for what, (uid, used, limit) in after.items():
            before = self._used.get(what, {})
            known = self._generations.get(what) == uid
            for resource, most in limit.items():
                now, counted = used.get(resource, 0), resource in before or what in state.of("Node")
                if known and counted and now > max(most, before.get(resource, 0)):
                    yield "overfull", f"{what}: {resource} went from {before} to {used} of {dict(limit)}"
        self._used = {what: used for what, (_, used, _) in after.items()}
        self._generations = {what: uid for what, (uid, _, _) in after.items()}

    def _quotas_are_sums(self, state: State) -> Wrong:
        for found in state.of("ZoneQuota.kedge.dev").values():
            for zone, use in found.view.status.zones.items():
                claims = (c for ledger in state.ledgers().values() for c in ledger.claims.values() if c.zone == zone)
                total = add(*(claim.requests for claim in claims))
                if total != {r: n for r, n in to_units(use.used).items() if n}:
                    yield (
                        "quota",
                        f"{found.key}: the sum of claims in {zone} is {total}, the quota has {dict(use.used)}",
                    )

    def _gangs_are_whole(self, state: State) -> Wrong:
        """A member is bound only after its whole gang held room."""
        record = state.of("Reservation.kedge.dev").get(RECORD.name)
        if record is not None and record.view.status.phase == "Committed":
            self._committed |= frozenset(record.view.status.members)
            self._sim.sometimes("a gang was committed")
        for found in state.of("Pod").values():
            if found.key.name in GANG and found.view.spec.node_name and found.uid not in self._committed:
                yield "part of a gang", f"{found.key} was bound, and its gang was never committed with it"


# -- the end of a run ------------------------------------------------------------------------------


def could_be_bound(state: State) -> list[Key]:
    """Pending pods that fit some node, by the predicates of the bind and by the rules about other pods."""
    nodes, ledgers = state.of("Node"), state.live_ledgers()
    gangs = [found for found in state.of("Pod").values() if found.key.name in GANG]
    left = []
    for found in state.of("Pod").values():
        view = found.view
        if view.spec.node_name or view.finished or view.terminating:
            continue
        if found.key.name in GANG and len(gangs) < len(GANG):
            continue
        for name, owner in nodes.items():
            ledger = ledgers.get(name) or Ledger(name, owner.uid)
            if first_misfit(view, owner.view, ledger) is None and not _quota_short(state, owner, pod_requests(view)):
                if found.key.name in GANG and not _both_fit(state, gangs):
                    continue
                if _ruled_out(state, found, owner):
                    continue
                if _free_of_the_past(state, name, view, owner):
                    left.append(found.key)
    return left


def _ruled_out(state: State, waiting: Object, owner: Object) -> bool:
    """Whether a rule about other pods rejects the node, by the model, on committed state."""
    pods = {
        found.uid: model.Placed(found.uid, found.view.spec.node_name, found.view)
        for found in state.of("Pod").values()
        if found.view.spec.node_name and not found.view.finished
    }
    cluster = model.Cluster({name: found.view for name, found in state.of("Node").items()}, pods)
    question, home = model.PlacementCase(waiting.view), owner.view
    return any(
        list(failed)
        for failed in (
            model.spread(0, cluster, question, home),
            model.pod_affinity(cluster, question, home),
            model.own_anti_affinity(0, cluster, question, home),
            model.anti_affinity_of_others(HOST, cluster, question, home),
        )
    )


def _both_fit(state: State, gangs: list[Object]) -> bool:
    """A gang certainly fits if one node has room for all of it."""
    need = add(*(pod_requests(each.view) for each in gangs if not each.view.spec.node_name))
    return any(
        not shortages(need, _used(state, name), node_allocatable(owner.view))
        and not owner.view.spec.unschedulable
        and not _quota_short(state, owner, need)
        for name, owner in state.of("Node").items()
    )


def _free_of_the_past(state: State, name: str, view: Any, owner: Object) -> bool:
    """Pods of an earlier incarnation still count for the scheduler, until they are deleted."""
    return not shortages(pod_requests(view), _used(state, name), node_allocatable(owner.view))


def _used(state: State, name: str) -> Units:
    ledger = state.live_ledgers().get(name)
    held = dict(ledger.claims) if ledger is not None else {}
    asked = [claim.requests for claim in held.values()]
    for found in state.of("Pod").values():
        if found.view.spec.node_name == name and not found.view.finished and found.uid not in held:
            asked.append(pod_requests(found.view))
    return add(*asked)


def _quota_short(state: State, owner: Object, need: Units) -> bool:
    zone = owner.metadata.labels.get("topology.kubernetes.io/zone", "")
    for quota in state.of("ZoneQuota.kedge.dev").values():
        limit = quota.view.spec.zones.get(zone)
        if limit is None:
            continue
        hard = to_units(limit.hard)
        claims = (c for ledger in state.ledgers().values() for c in ledger.claims.values() if c.zone == zone)
        used = add(*(claim.requests for claim in claims))
        if shortages({r: need[r] for r in need.keys() & hard.keys()}, used, hard):
            return True
    return False
