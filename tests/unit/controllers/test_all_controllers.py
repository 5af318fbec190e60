"""All controllers of a process: each has its own name and lease, in namespaces that are defined once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tests.kit.nodes import objects
from tests.objects import NAMESPACE

import kedge
from kedge.api.wellknown import SYSTEM_NAMESPACE, SYSTEM_NAMESPACES
from kedge.controllers import CONTROLLERS, all_controllers, lease_of
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import Controller, ControllerRuntime
from kedge.runtime.cache import CacheSet
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run


async def open_all(sim: Simulation, namespaces: tuple[str, ...]) -> tuple[list[str], set[tuple[str, str]]]:
    """The controllers that work after a minute, and the existing leases."""
    cluster = Cluster(sim)
    for name in namespaces:
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": name}})
    made: list[Controller] = []

    async def process(host: Host) -> None:
        env = host.env()
        client = cluster.client(host)
        made.extend(all_controllers(ControllerRuntime(client, env, CacheSet(client, env), Recorder(env))))
        async with asyncio.TaskGroup() as group:
            for each in made:
                group.create_task(each.run(), name=each.name)

    sim.host("manager").boot(process)
    await asyncio.sleep(60)
    leases = {each.key[1:] for each in objects(cluster.store, "Lease.coordination.k8s.io")}
    return [each.name for each in made if each.statistics().leading], leases


def test_each_controller_has_its_own_name_and_lease() -> None:
    outcome = run(partial(open_all, namespaces=SYSTEM_NAMESPACES), 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
    working, leases = outcome.result
    assert working == list(CONTROLLERS)  # each has its own name
    assert leases == {lease_of(name)[1:] for name in CONTROLLERS}
    assert len(leases) == len(CONTROLLERS)


def test_no_controller_leads_without_the_namespace_of_the_leases() -> None:
    others = tuple(each for each in SYSTEM_NAMESPACES if each != SYSTEM_NAMESPACE)
    outcome = run(partial(open_all, namespaces=others), 1, faults=NO_FAULTS)
    assert outcome.result == ([], set())


def test_the_namespaces_of_the_control_plane_are_defined_once() -> None:
    package = Path(kedge.__file__).parent
    naming = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        if "sim" not in path.relative_to(package).parts
        and any(f'"{name}"' in path.read_text("utf-8") for name in SYSTEM_NAMESPACES)
    ]
    assert naming == ["api/wellknown.py"]
