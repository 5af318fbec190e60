"""What a theme of the zoo demands of its end, beyond what every world is held to, and the nets that it does without.

Like `kedge.sim.endings`, these read committed state and share no code with the controllers they judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.api.views import PodView
from kedge.placement.resources import node_allocatable, pod_requests, to_units
from kedge.sim.facts import DEPLOYMENT, owner_uid
from kedge.sim.invariants import Judge
from kedge.sim.links import Commit
from kedge.sim.standard import World

NEVER_S = 1e6
NO_NETS = {"relist_every_s": NEVER_S, "resync_every_s": NEVER_S, "scheduler_flush_s": NEVER_S}
"""What comes round by time would hide that a wake-up was lost."""


def expect(world: World, *endings: Callable[[Judge], bool]) -> None:
    """Demand these of a world's end, by name."""
    for ending in endings:

        def asked(ending: Callable[[Judge], bool] = ending) -> bool:
            return ending(world.judge)

        asked.__name__ = ending.__name__
        world.sim.check_eventually(asked)


class RecreateNeverOverlaps:
    """Of a Deployment that recreates, no pod is made while one of another revision may still run."""

    __name__ = "recreate never overlaps"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        facts = self._facts
        for key in commit.keys:
            found = facts.objects.get(key) if key.kind == "Pod" else None
            if found is None or found.created != commit.revision:
                continue
            made = found.as_view(PodView)
            top = facts.workload_of(made)
            if top is None or top.key.kind != DEPLOYMENT or top.view.spec.strategy.type != "Recreate":
                continue
            for other in facts.pods_under(top):
                if owner_uid(other) != owner_uid(made) and other.spec.node_name and not other.finished:
                    yield "two revisions", f"{key} was made while {other.name} may still run"


def quotas_say_what_is_used(judge: Judge) -> bool:
    """A quota's status is the sum of what its namespace holds."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind != "ResourceQuota" or not found.view.status.used:
            continue
        real = facts.use_of(key.namespace)
        if any(amount != real.get(name, 0) for name, amount in to_units(found.view.status.used).items()):
            return False
    return True


def pods_that_fit_are_bound(judge: Judge) -> bool:
    """No pod waits that some node has room for, by what is really claimed."""
    facts = judge.facts
    rooms = []
    for key, found in facts.objects.items():
        if key.kind == "Node":
            ledger = facts.objects.get(key._replace(kind="NodeAllocation.kedge.dev"))
            taken = to_units(ledger.view.status.allocated) if ledger is not None else {}
            rooms.append({name: most - taken.get(name, 0) for name, most in node_allocatable(found.view).items()})
    for pod in facts.pods.values():
        asked = pod_requests(pod.as_view(PodView))
        fits = any(all(amount <= room.get(name, 0) for name, amount in asked.items()) for room in rooms)
        if fits and not pod.as_view(PodView).spec.node_name:
            return False
    return True


def nothing_outlives_its_namespace(judge: Judge) -> bool:
    """What is in a namespace has one, and one that was told to go has gone."""
    facts = judge.facts
    names = {key.name for key in facts.objects if key.kind == "Namespace"}
    ending = any(
        found.metadata.deletion_timestamp is not None for key, found in facts.objects.items() if key.kind == "Namespace"
    )
    return not ending and all(key.namespace in names for key in facts.objects if key.namespace)


def no_owner_is_a_ghost(judge: Judge) -> bool:
    """Whoever is named as an owner is there."""
    facts = judge.facts
    return all(ref.uid in facts.uids for found in facts.objects.values() for ref in found.metadata.owner_references)


def nothing_is_on_its_way_out(judge: Judge) -> bool:
    """What was told to go has gone."""
    return all(found.metadata.deletion_timestamp is None for found in judge.facts.objects.values())
