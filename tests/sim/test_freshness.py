"""The judge of freshness: decisions on a view without an own write, before the fence, or older than a budget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kit.raw_cluster import RawCluster, replica_set
from tests.objects import pod

from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.records import CacheRead, Call, Decision, encode_intent
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.decision_observers import ObservedRecorder
from kedge.sim.judges.invariants import FRESHNESS, Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.kernel.violations import Violation
from kedge.store import DeleteKey

WEB = Key("ReplicaSet.apps", "default", "web")
OWNED = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
SHOP = Key("Deployment.apps", "default", "shop")


class Deciding:
    """A judged cluster, and a recorder that takes made-up decisions."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.cluster = Cluster(sim)
        self.raw = RawCluster(self.cluster, Judge(self.cluster))
        host = sim.host("manager")
        self.recorder = ObservedRecorder(host.env(), host.name, self.cluster._decision_observers)
        self.taken = 0

    async def open(self) -> None:
        await self.cluster.set_up()
        await self.raw.add(replica_set(0), "rs-1")

    @property
    def revision(self) -> int:
        return self.cluster.store.revision_nowait()

    def decide(self, steps: list[Any], *, controller: str = "replicaset", key: Key = WEB, **more: Any) -> None:
        self.taken += 1
        made = Decision(
            id=f"{controller}:p:{self.taken}",
            controller=controller,
            process="p",
            key=key,
            tenant="default",
            priority=0,
            began=self.sim.driver.now(),
            steps=steps,
            **more,
        )
        self.recorder.take(made)

    async def write(self, key: Key) -> Call:
        """A call of the next decision that writes an object."""
        origin = Origin("operation", f"replicaset:p:{self.taken + 1}")
        await self.raw.put(
            key, lambda found: found["metadata"].update(annotations={"n": str(self.taken)}), origin=origin
        )
        return Call("patch", key, encode_intent({}), "", "", 0.0, 0.0, "done", self.revision)


def got(key: Key, revision: int, *found: Object) -> CacheRead:
    version = found[0].revision if found else 0
    return CacheRead(key.kind, "get", (key.namespace, key.name), 0, revision, 0.0, version, found)


def found_in(program: Any) -> Violation | None:
    return run(program, 1, faults=NO_FAULTS).violation


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("own version", ""),
        ("own version before its revision is complete", ""),
        ("older version", "on ReplicaSet.apps/default/web at version "),
        ("no version", "which lacks it, and had written "),
    ],
)
@pytest.mark.parametrize("verb", ["get", "list", "index"])
def test_a_decision_after_an_own_write_must_have_read_it(verb: str, view: str, text: str) -> None:
    async def program(sim: Simulation) -> None:
        world = Deciding(sim)
        await world.open()
        await world.raw.put(WEB, lambda found: found["metadata"].update(ownerReferences=[OWNED]))
        before = world.cluster.find(WEB)
        world.decide([await world.write(WEB)])
        found, revision = world.cluster.find(WEB), world.revision
        assert before is not None
        assert found is not None
        objects = {"older version": (before,), "no version": ()}.get(view, (found,))
        at = revision if view in ("own version", "older version") else revision - 1
        about = {"get": ("default", "web"), "list": ("default", ""), "index": ("controller", "d-1")}[verb]
        world.decide([CacheRead(WEB.kind, verb, about, 0, at, 0.0, 1, objects)])

    violation = found_in(program)
    assert (violation.invariant if violation else "") == (FRESHNESS if text else "")
    assert text in (violation.message if violation else "")


def test_an_own_write_that_is_gone_or_does_not_match_is_not_missed() -> None:
    async def program(sim: Simulation) -> None:
        world = Deciding(sim)
        await world.open()
        world.decide([await world.write(WEB)])
        before = world.revision - 1
        world.decide([CacheRead(WEB.kind, "list", ("other", ""), 0, before, 0.0, 0)])
        world.decide([CacheRead(WEB.kind, "list", ("", "app=shop"), 0, before, 0.0, 0)])
        world.decide([CacheRead(WEB.kind, "index", ("controller", "d-2"), 0, before, 0.0, 0)])
        await world.cluster.store.commit([], [DeleteKey(WEB)])
        world.decide([got(WEB, before)])

    assert found_in(program) is None


def test_writes_of_another_key_or_another_controller_are_not_awaited() -> None:
    async def program(sim: Simulation) -> None:
        world = Deciding(sim)
        await world.open()
        before = world.cluster.find(WEB)
        assert before is not None
        world.decide([await world.write(WEB)])
        world.decide([got(WEB, before.revision, before)], key=Key(WEB.kind, "default", "other"))
        world.decide([got(WEB, before.revision, before)], controller="deployment")

    assert found_in(program) is None


@pytest.mark.parametrize("revision", [10, 9])
def test_a_leader_has_caught_up_with_its_fence(revision: int) -> None:
    async def program(sim: Simulation) -> None:
        world = Deciding(sim)
        world.decide([got(WEB, revision)], fence=10)

    violation = found_in(program)
    assert (violation is not None) == (revision < 10)
    if violation is not None:
        assert "as the leader since revision 10" in violation.message


@pytest.mark.parametrize(
    ("after_s", "replicas", "found"),
    [(60.0, 3, True), (60.0, 1, False), (30.0, 3, False)],
    ids=["old view", "fewer replicas", "within the budget"],
)
def test_replicas_are_added_on_a_view_within_the_budget(after_s: float, replicas: int, found: bool) -> None:
    async def program(sim: Simulation) -> None:
        world = Deciding(sim)
        await world.open()
        await world.raw.add(
            {**replica_set(2), "kind": "Deployment", "metadata": {"name": "shop", "namespace": "default"}}, "d"
        )
        seen = world.revision
        await world.cluster.create(pod("new"))  # the decision does not see it
        await asyncio.sleep(after_s)
        shop = world.cluster.find(SHOP)
        assert shop is not None
        reads = [
            CacheRead(SHOP.kind, "get", ("default", "shop"), 0, seen, 0.0, shop.revision, (shop,)),
            CacheRead("Pod", "list", ("default", ""), 0, seen, 0.0, 0),
        ]
        patch = encode_intent({"spec": {"replicas": replicas}})
        call = Call("patch", SHOP, patch, "", "", 0.0, 0.0, "done", seen + 1)
        world.decide(
            [*reads, call], controller="autoscaler", key=Key("HorizontalPodAutoscaler.autoscaling", "default", "shop")
        )

    violation = found_in(program)
    assert (violation is not None) == found
    if violation is not None:
        assert violation.invariant == FRESHNESS
        assert "autoscaler_cache_age_s is 45.0 s" in violation.message
