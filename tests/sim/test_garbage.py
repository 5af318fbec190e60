"""Dependents are deleted with their owners and others stay, with wrong caches, lost replies and crashed collectors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from tests.kit.cluster import seeds
from tests.kit.config_maps import a_map, key_of, maps
from tests.kit.nodes import QUICK, ControllerFleet, find, new_cluster, settle
from tests.objects import CONFIG_MAP, NAMESPACE

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import RBAC_GROUP, ROLE_BINDING_KIND
from kedge.controllers.garbage.controller import GarbageCollector, garbage_controller
from kedge.controllers.namespace.controller import NamespaceReconciler, namespace_controller
from kedge.keys import Key
from kedge.sim.cluster import Commit
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run


class OwnedObjectsStay:
    """An object with a live owner, or without owners, is never deleted."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        missing = self.names - maps(commit.store)
        if missing:
            yield "live children deleted", f"{sorted(missing)} at revision {commit.revision}"
            self.names -= missing


async def families(sim: Simulation) -> int:
    cluster = await new_cluster(sim)
    kept = OwnedObjectsStay()
    sim.check_always(kept)
    fleet = ControllerFleet(cluster)
    fleet.boot(sim, garbage_controller, copies=2)
    create = cluster.authority.create

    async def make(name: str, *owners: Object, **metadata: Any) -> Object:
        return (await create(CONFIG_MAP, a_map(name, *owners, **metadata))).object

    background, foreground, orphaning, living = [await make(each) for each in ("bg", "fg", "orphaning", "living")]
    for owner in (background, foreground, orphaning, living):
        child = await make(f"{owner.key.name}-child", owner)
        await make(f"{owner.key.name}-grandchild", child)
    await make("shared", background, living)
    kept.names = {"living", "living-child", "living-grandchild", "shared", "orphaning-child", "orphaning-grandchild"}
    await asyncio.sleep(sim.choose_int("pause", 0, 20))
    # A new object of the same name is not the owner of the old one's dependents.
    await cluster.authority.delete(key_of("bg"), DeleteOptions(propagation="Background"))
    await make("bg")
    await cluster.authority.delete(key_of("fg"), DeleteOptions(propagation="Foreground"))
    await cluster.authority.delete(key_of("orphaning"), DeleteOptions(propagation="Orphan"))
    await asyncio.sleep(40)
    for n in range(3):
        await make(f"late-{n}", background)  # its owner was deleted before it was created
    left = {*kept.names, "bg"}
    await settle(sim, cluster, lambda: maps(cluster.store) == left)
    shared = find(cluster.store, key_of("shared"))
    assert shared is not None
    assert [ref.uid for ref in shared.metadata.owner_references] == [living.uid]
    orphan = find(cluster.store, key_of("orphaning-child"))
    assert orphan is not None
    assert not orphan.metadata.owner_references
    return await fleet.recheck({"garbage": GarbageCollector})


@seeds(4, 40)
def test_dependents_are_deleted_with_their_last_owner_and_no_sooner(seeds: range) -> None:
    for seed in seeds:
        outcome = run(families, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result


async def tenants(sim: Simulation) -> int:
    cluster = await new_cluster(sim)
    fleet = ControllerFleet(cluster)
    fleet.boot(sim, namespace_controller, copies=2)
    fleet.boot(sim, garbage_controller)
    for tenant in ("shop", "bank"):
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": tenant}})
        for n in range(4):
            await cluster.authority.create(CONFIG_MAP, a_map(f"m{n}", namespace=tenant))
    stuck = a_map("stuck", namespace="shop", finalizers=["a.example/b"])
    await cluster.authority.create(CONFIG_MAP, stuck)
    await cluster.authority.delete(Key("Namespace", "", "shop"))
    await asyncio.sleep(60)
    assert "stuck" in maps(cluster.store, "shop")
    assert find(cluster.store, Key("Namespace", "", "shop")) is not None
    override = "finalizers=a.example/b owner=ada until=2100-01-01T00:00:00Z reason=gone"
    patch = {"metadata": {"annotations": {"override.kedge.dev/remove-finalizers": override}}}
    await cluster.authority.patch(key_of("stuck", "shop"), patch)

    def gone() -> bool:
        return find(cluster.store, Key("Namespace", "", "shop")) is None and not maps(cluster.store, "shop")

    await settle(sim, cluster, gone)
    assert len(maps(cluster.store, "bank")) == 4
    return await fleet.recheck({"namespace": NamespaceReconciler, "garbage": GarbageCollector})


@seeds(4, 30)
def test_a_deleted_namespace_is_emptied_and_others_stay(seeds: range) -> None:
    for seed in seeds:
        outcome = run(tenants, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result


NO_NETS = replace(QUICK, relist_every_s=1e6, resync_every_s=1e6)


def without_faults(program: Callable[[Simulation], Coroutine[Any, Any, None]]) -> None:
    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}"


def test_an_owner_that_waits_for_its_dependents_is_woken_when_one_is_released() -> None:
    """Another owner keeps the child, so it stays: only the reference to the waiting owner is removed."""

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim)
        ControllerFleet(cluster, limits=NO_NETS).boot(sim, garbage_controller)
        create = cluster.authority.create
        mum, dad = [(await create(CONFIG_MAP, a_map(name))).object for name in ("mum", "dad")]
        await create(CONFIG_MAP, a_map("kid", mum, dad))
        await asyncio.sleep(5)
        await cluster.authority.delete(key_of("mum"), DeleteOptions(propagation="Foreground"))
        await asyncio.sleep(60)
        assert maps(cluster.store) == {"dad", "kid"}

    without_faults(program)


def test_objects_with_owners_are_resynced_without_an_event() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim)
        fleet = ControllerFleet(cluster, limits=replace(NO_NETS, resync_every_s=20.0))
        fleet.boot(sim, garbage_controller)
        mum = (await cluster.authority.create(CONFIG_MAP, a_map("mum"))).object
        await cluster.authority.create(CONFIG_MAP, a_map("kid", mum))
        await asyncio.sleep(120)
        looked_at = Counter(decision.key.name for decision in fleet.processes[0][2].decisions())
        assert looked_at["kid"] >= 3
        assert looked_at["mum"] == 0, "it has no owner, and blocks no owner"

    without_faults(program)


def test_an_owner_waits_for_dependents_that_no_cache_has() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim)
        Judge(cluster)
        fleet = ControllerFleet(cluster, limits=replace(NO_NETS, relist_every_s=60.0))
        fleet.boot(sim, garbage_controller)
        create = cluster.authority.create
        mum = (await create(CONFIG_MAP, a_map("mum"))).object
        await asyncio.sleep(5)
        fleet.hidden.add(key_of("kid"))
        await create(CONFIG_MAP, a_map("kid", mum))
        await cluster.authority.delete(key_of("mum"), DeleteOptions(propagation="Foreground"))
        await asyncio.sleep(20)
        assert maps(cluster.store) == {"mum", "kid"}
        fleet.hidden.clear()
        await asyncio.sleep(100)  # a list has the dependent at last
        assert maps(cluster.store) == set()

    without_faults(program)


def test_a_binding_goes_with_its_owner() -> None:
    """A right that outlives the object that it was made for is a right that no one remembers."""

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim)
        ControllerFleet(cluster, limits=NO_NETS).boot(sim, garbage_controller)
        owner = (await cluster.authority.create(CONFIG_MAP, a_map("owner"))).object
        binding = {
            "metadata": a_map("granted", owner)["metadata"],
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": RBAC_GROUP, "kind": "User", "name": "ada"}],
        }
        await cluster.authority.create(KINDS.of_key_kind(ROLE_BINDING_KIND), binding)
        await asyncio.sleep(5)
        key = Key(ROLE_BINDING_KIND, "default", "granted")
        assert find(cluster.store, key) is not None
        await cluster.authority.delete(key_of("owner"), DeleteOptions(propagation="Background"))
        await asyncio.sleep(20)
        assert find(cluster.store, key) is None

    without_faults(program)
