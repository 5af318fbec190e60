"""Invariants and endings of single worlds of the zoo, in addition to those of every simulated cluster.

Like `kedge.sim.judges.endings`, these read committed state and share no code with the controllers they judge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from kedge.agent.core import Identity
from kedge.api.views import PodView
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
)
from kedge.keys import Key
from kedge.placement.resources import node_allocatable, pod_requests, to_units
from kedge.sim.cluster import Node
from kedge.sim.cluster.links import Commit
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.pod_facts import owner_uid
from kedge.sim.standard import JudgedCluster


def expect(world: JudgedCluster, *endings: Callable[[Judge], bool]) -> None:
    """Check these endings of a world, by name."""
    for ending in endings:

        def holds(ending: Callable[[Judge], bool] = ending) -> bool:
            return ending(world.judge)

        holds.__name__ = ending.__name__
        world.sim.check_eventually(holds)


class RecreateNeverOverlaps:
    """A Deployment with strategy Recreate creates no pod while a pod of another revision may still run.

    Except in a rollback whose availability floor keeps the last available replica.
    """

    __name__ = "recreate never overlaps"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        facts = self._facts
        for key in commit.keys:
            found = facts.objects.get(key) if key.kind == POD_KIND else None
            if found is None or found.created != commit.revision:
                continue
            made = found.as_view(PodView)
            top = facts.workload_of(made)
            if top is None or top.key.kind != DEPLOYMENT_KIND or top.view.spec.strategy.type != "Recreate":
                continue
            if facts.has_floor(top):
                continue
            for other in facts.pods_under(top):
                if owner_uid(other) != owner_uid(made) and other.spec.node_name and not other.finished:
                    yield "two revisions", f"{key} was made while {other.name} may still run"


class StoppingCopiesCount:
    """No pod is created beyond the number that its ReplicaSet recently wanted; terminating pods count."""

    __name__ = "stopping copies count"

    def __init__(self, judge: Judge) -> None:
        self._facts, self._sim = judge.facts, judge.cluster.sim
        self._sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        facts = self._facts
        for key in commit.keys:
            found = facts.objects.get(key) if key.kind == POD_KIND else None
            owner = owner_uid(found.as_view(PodView)) if found is not None else ""
            if found is None or found.created != commit.revision or not owner:
                continue
            copies = sum(not pod.as_view(PodView).finished for pod in facts.pods_of(owner))
            most = facts.most_wanted(owner, self._sim.now_s - LAG_S)
            if most is not None and copies > most:
                yield (
                    "too many",
                    f"{key} is the copy {copies} of its ReplicaSet, which never lately wanted more than {most}",
                )


class DeletedPodsStayDeleted:
    """No commit brings back the uid of a pod that was deleted."""

    __name__ = "deleted pods stay deleted"

    def __init__(self, judge: Judge) -> None:
        self._cluster = judge.cluster
        self._there: dict[Key, str] = {}
        self._gone: dict[str, None] = {}
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            if key.kind != POD_KIND:
                continue
            found, was = self._cluster.find(key), self._there.pop(key, "")
            if found is not None:
                self._there[key] = found.uid
                if found.uid in self._gone:
                    yield "revived", f"{key} was removed, and a later write brought it back"
            if was and (found is None or found.uid != was):
                self._gone[was] = None


class AntiAffinityHolds:
    """No pod shares a node with a pod that it excludes. In this world each pod excludes all others."""

    __name__ = "anti affinity holds"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            found = self._facts.objects.get(key) if key.kind == POD_KIND else None
            node = found.as_view(PodView).spec.node_name if found is not None else ""
            for other in self._facts.pods.values():
                view = other.as_view(PodView)
                if node and view.spec.node_name == node and other.key != key and not view.finished:
                    yield "together", f"{key} and {other.key} are both on {node}"


class GangsAreComplete:
    """A gang is committed, after which its members are bound, only while all of them hold a reservation."""

    __name__ = "gangs are complete"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts
        self._committed: dict[str, None] = {}
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            found = self._facts.objects.get(key) if key.kind == RESERVATION_KIND else None
            if found is None or found.view.status.phase != "Committed" or found.uid in self._committed:
                continue
            self._committed[found.uid] = None
            held, size = len(found.view.status.members), found.view.spec.gang_size
            if held < size:
                yield "in part", f"{key} is committed, and {held} of its {size} members hold a place"


class NoEvictionIsInVain:
    """A scheduler evicts pods for a gang only if the whole gang then fits."""

    __name__ = "no eviction is in vain"

    def __init__(self, judge: Judge, *, useful: bool) -> None:
        self._facts, self._useful = judge.facts, useful
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if self._useful or "scheduler" not in commit.origin.decision:
            return
        for key in commit.keys:
            found = self._facts.objects.get(key) if key.kind == POD_KIND else None
            if found is not None and found.metadata.deletion_timestamp is not None:
                yield "evicted", f"{key} was evicted for a gang that does not fit"


class OnlyUnwantedProcessesAreStopped:
    """No process is stopped whose pod is bound to its node, claimed by that incarnation, and not terminating."""

    __name__ = "only unwanted processes are stopped"

    def __init__(self, world: JudgedCluster) -> None:
        self._world = world
        for node in world.cluster.nodes.values():
            node.driver.stop = partial(self._stop, node, node.driver.stop)  # type: ignore[method-assign]

    async def _stop(
        self, node: Node, stop: Callable[..., Awaitable[None]], identity: Identity, *, grace_s: float, cause: str = ""
    ) -> None:
        facts = self._world.judge.facts
        pod, known = facts.pods.get(identity.pod_uid), facts.objects.get(node.key)
        same = known is not None and known.uid == identity.node_uid
        if pod is not None and same and node.name in facts.claims.get(pod.uid, {}):
            view = pod.as_view(PodView)
            if view.spec.node_name == node.name and not view.terminating and not view.finished:
                self._world.sim.violate(self.__name__, f"{node.name} stops {pod.key}, which should run")
        await stop(identity, grace_s=grace_s, cause=cause)


def bound_pods_have_claims(judge: Judge) -> bool:
    """Every bound pod that has not ended has a claim on its node, of the current incarnation."""
    facts = judge.facts
    for uid, pod in facts.pods.items():
        view = pod.as_view(PodView)
        if view.spec.node_name and not view.finished and view.spec.node_name not in facts.claims.get(uid, {}):
            return False
    return True


def quota_status_equals_usage(judge: Judge) -> bool:
    """The status of every quota is the sum over the objects of its namespace."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind != RESOURCE_QUOTA_KIND or not found.view.status.used:
            continue
        real = facts.use_of(key.namespace)
        if any(amount != real.get(name, 0) for name, amount in to_units(found.view.status.used).items()):
            return False
    return True


def pods_that_fit_are_bound(judge: Judge) -> bool:
    """No pod is pending that fits some node, by the committed claims."""
    facts = judge.facts
    rooms = []
    for key, found in facts.objects.items():
        if key.kind == NODE_KIND:
            ledger = facts.objects.get(key._replace(kind=NODE_ALLOCATION_KIND))
            taken = to_units(ledger.view.status.allocated) if ledger is not None else {}
            rooms.append({name: most - taken.get(name, 0) for name, most in node_allocatable(found.view).items()})
    for pod in facts.pods.values():
        requests = pod_requests(pod.as_view(PodView))
        fits = any(all(amount <= room.get(name, 0) for name, amount in requests.items()) for room in rooms)
        if fits and not pod.as_view(PodView).spec.node_name:
            return False
    return True


def urgent_pods_are_bound(judge: Judge) -> bool:
    """Every pod with a priority has a node."""
    pods = [pod.as_view(PodView) for pod in judge.facts.pods.values()]
    return all(pod.spec.node_name for pod in pods if pod.spec.priority)


def nothing_outlives_its_namespace(judge: Judge) -> bool:
    """Every namespaced object has its namespace, and no namespace is terminating."""
    facts = judge.facts
    names = {key.name for key in facts.objects if key.kind == NAMESPACE_KIND}
    ending = any(
        found.metadata.deletion_timestamp is not None
        for key, found in facts.objects.items()
        if key.kind == NAMESPACE_KIND
    )
    return not ending and all(key.namespace in names for key in facts.objects if key.namespace)


def every_owner_exists(judge: Judge) -> bool:
    """Every owner reference names an object that exists."""
    facts = judge.facts
    return all(ref.uid in facts.uids for found in facts.objects.values() for ref in found.metadata.owner_references)


def no_deletion_is_pending(judge: Judge) -> bool:
    """No object is terminating."""
    return all(found.metadata.deletion_timestamp is None for found in judge.facts.objects.values())
