"""Production's composition root, in real time: every controller, a scheduler and agents on SQLite, in one process."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit.agent import TableDriver
from tests.kit.records import decision, make_env
from tests.objects import deployment

from kedge.agent.core import Agent, Machine
from kedge.api.conditions import is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, ListOptions
from kedge.api.wellknown import POD_KIND
from kedge.cli import wiring
from kedge.cli.configuration.fields import VERBS, config_fields
from kedge.cli.incidents.recording_process import recording_process
from kedge.cli.incidents.servers import OwnIncidents
from kedge.cli.keep_option import keep_rules
from kedge.cli.live import logged_records
from kedge.cli.wiring import NAMESPACES, ControlPlane
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers import CONTROLLERS
from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe import DecisionLog
from kedge.observe.recording.recorder import Recorder
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.sim.standard import budget, job, quota, service
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore

LIMITS = Limits(node_renew_s=1.0, agent_usage_s=0.5, autoscaler_look_s=0.5, autoscaler_start_s=0.0, drain_s=0.2)
PATIENCE_S = 60.0
WEB = Key("Deployment.apps", "shop", "web")


@dataclass
class SingleProcessCluster:
    """A whole cluster in this process."""

    env: Env
    service: Service
    plane: ControlPlane
    drivers: list[TableDriver]

    async def create(self, body: dict[str, Any], namespace: str = "") -> Object:
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        return (await self.service.create(kind, body, namespace=namespace)).object

    async def all(self, kind: str, namespace: str = "") -> tuple[Object, ...]:
        found = await self.service.list(KINDS.of_key_kind(kind), ListOptions(namespace=namespace))
        return tuple(found.objects)

    async def find(self, key: Key) -> Object | None:
        found = [each for each in await self.all(key.kind, key.namespace) if each.key == key]
        return found[0] if found else None

    async def until(self, key: Key, holds: Callable[[Any], bool]) -> Any:
        """Wait until an object fulfils a condition. Returns its view."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.find(key)
                if found is not None and holds(found.view):
                    return found.view
                await asyncio.sleep(0.05)

    async def until_gone(self, key: Key) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.find(key) is not None:  # noqa: ASYNC110  a store has no event for it
                await asyncio.sleep(0.05)


async def until_leading(plane: ControlPlane) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not plane.leading:  # noqa: ASYNC110  polled, as by a readiness probe
            await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster(path: Path, *, nodes: int = 2) -> AsyncIterator[SingleProcessCluster]:
    env = system_env(limits=LIMITS)
    store = await SqliteStore.open(path, env)
    api = Service(store, env)
    transport = DirectTransport(api)
    plane = ControlPlane(transport, env, decisions=path.parent / "decisions")
    drivers = [TableDriver() for _ in range(nodes)]
    running = asyncio.create_task(plane.run())
    agents = []
    for number, driver in enumerate(drivers):
        machine = Machine(name=f"node-{number}", capacity={"cpu": "8", "memory": "16Gi", "pods": "110"})
        client = Client(transport, env, component=machine.name)
        agents.append(asyncio.create_task(Agent(client, env, driver, machine, Recorder(env)).run()))
    try:
        yield SingleProcessCluster(env, api, plane, drivers)
        await plane.stop(within_s=PATIENCE_S)
        await asyncio.wait_for(running, PATIENCE_S)  # raises what it failed of, if it did
    finally:
        for task in (running, *agents):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await store.close()


def web(replicas: int) -> dict[str, Any]:
    body = deployment("web", replicas=replicas)
    body["metadata"]["namespace"] = "shop"
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    return body


def in_namespace_shop(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "namespace": "shop"}}


def test_all_controllers_and_a_scheduler_keep_a_cluster_on_sqlite_in_real_time(tmp_path: Path) -> None:
    async def program() -> None:
        async with cluster(tmp_path / "kedge.db") as here:
            shop = Key("Namespace", "", "shop")
            await here.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            for body in (web(3), service("web", "web"), budget("web", "web", 1), quota("most", pods="20")):
                await here.create(in_namespace_shop(body))
            await here.until(WEB, lambda view: view.status.progress.stages.serving == 3)
            assert [each.name for each in here.plane.controllers] == list(CONTROLLERS)
            assert here.plane.leading
            await here.until(
                Key("PodDisruptionBudget.policy", "shop", "web"), lambda v: v.status.disruptions_allowed == 1
            )
            await here.until(Key("ResourceQuota", "shop", "most"), lambda v: str(v.status.used["pods"]) == "3")

            change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}}}
            await here.service.patch(WEB, change)
            await here.until(WEB, is_rolled_out)

            sums = job("sums", 2)
            sums["spec"]["template"]["spec"]["containers"][0]["command"] = ["true"]
            await here.create(in_namespace_shop(sums))
            await here.until(Key("Job.batch", "shop", "sums"), lambda v: is_true(v.status.conditions, "Complete"))

            await here.service.delete(shop, DeleteOptions())
            await here.until_gone(shop)
            assert await here.all("Pod", "shop") == ()
            left = [process for driver in here.drivers for process in await driver.processes() if process.running]
            assert left == []

    asyncio.run(program())


def test_a_control_plane_begins_scans_of_the_garbage_collector_until_it_stops(tmp_path: Path) -> None:
    def collectors() -> int:
        return sum(task.get_name() == "garbage collector" for task in asyncio.all_tasks())

    async def program() -> None:
        async with cluster(tmp_path / "kedge.db", nodes=0) as here:
            await until_leading(here.plane)
            assert collectors() == 1
        assert collectors() == 0

    asyncio.run(program())


def is_rolled_out(view: Any) -> bool:
    status = view.status
    done = status.updated_replicas == status.available_replicas == status.replicas == view.spec.replicas
    return bool(status.observed_generation == view.generation and done)


def test_the_autoscaler_uses_the_measurements_of_real_agents(tmp_path: Path) -> None:
    async def program() -> None:
        async with cluster(tmp_path / "kedge.db") as here:
            for driver in here.drivers:
                driver.cores = 0.2
            await here.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            await here.create(web(1))
            target = {"type": "Utilization", "averageUtilization": 100}
            spec = {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 1,
                "maxReplicas": 3,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            }
            metadata = {"name": "web", "namespace": "shop"}
            body = {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": metadata,
                "spec": spec,
            }
            await here.create(body)
            await here.until(WEB, lambda view: view.spec.replicas > 1)

    asyncio.run(program())


def test_one_of_two_processes_leads_and_the_other_takes_over(tmp_path: Path) -> None:
    async def program() -> None:
        async with cluster(tmp_path / "kedge.db", nodes=0) as here:
            other = ControlPlane(
                DirectTransport(here.service), here.env, decisions=tmp_path / "other", component="other"
            )
            running = asyncio.create_task(other.run())
            await until_leading(here.plane)
            assert not other.leading
            await here.plane.stop()
            await until_leading(other)
            await other.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(program())


def test_a_control_plane_creates_its_namespaces(tmp_path: Path) -> None:
    async def program() -> None:
        async with cluster(tmp_path / "kedge.db", nodes=0) as here:
            await until_leading(here.plane)
            assert {each.key.name for each in await here.all("Namespace")} == set(NAMESPACES)

    asyncio.run(program())


def test_records_survive_the_process_and_name_the_controller_behind_each_wake_up(tmp_path: Path) -> None:
    async def program() -> None:
        async with cluster(tmp_path / "kedge.db") as here:
            here.plane.recorder.open_window("test", until_s=here.env.monotonic() + 600)
            await here.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
            await here.create(web(2))
            await here.until(WEB, lambda view: view.status.ready_replicas == 2)

    asyncio.run(program())
    recorded = logged_records(tmp_path)
    found = recorded.decisions
    covered = recorded.coverages[-1]
    assert covered.seen >= sum(covered.kept.values()) == len(found)
    assert {"deployment", "replicaset", "default-scheduler"} <= {each.controller for each in found}
    attempts = [each for each in found if each.scheduling is not None and each.key.namespace == "shop"]
    assert {each.wakes for each in attempts} == {(("added", "replicaset"),)}
    causes = [each.scheduling.cause for each in attempts if each.scheduling is not None]
    assert {(cause.key.kind, cause.writer) for cause in causes if cause is not None} == {("Pod", "replicaset")}
    assert all(cause is not None and cause.revision for cause in causes)


@pytest.mark.parametrize(("tenants", "rules"), [(("payments",), {"tenant", "priority"}), ((), {"priority"})])
def test_the_records_of_tenants_and_priorities_that_were_configured_are_kept(
    tmp_path: Path, tenants: tuple[str, ...], rules: set[str]
) -> None:
    """A file's `decisions_tenants` and `limits.decisions_priority_min`, with the sample and the quiet rule off."""

    async def program() -> None:
        limits = replace(
            LIMITS, decisions_priority_min=7, decisions_sample_every=1 << 40, decisions_quiet_per_s=0.0
        )  # fmt: skip
        env = system_env(limits=limits)
        transport = DirectTransport(Service(MemoryStore(env), env))
        client = Client(transport, env, component="test")
        own = OwnIncidents(IncidentFolder(tmp_path / "incidents", env))
        kept = keep_rules(tenants)
        plane = ControlPlane(transport, env, decisions=tmp_path / "plane", rules=kept)
        async with recording_process(client, env, tmp_path / "agent", own, process="agent", rules=kept) as recorder:
            for each in (plane.recorder, recorder):
                about = [
                    decision("d:1", key=Key(POD_KIND, "payments", "a"), tenant="payments"),
                    decision("d:2", key=Key(POD_KIND, "shop", "a"), tenant="shop"),
                    decision("d:3", key=Key(POD_KIND, "shop", "b"), tenant="shop", priority=7),
                ]
                assert {each.why_keep(made) for made in about} == {"", *rules}
                assert each.why_keep(about[1]) == ""
        plane.log.close()

    asyncio.run(program())


def test_every_verb_gives_its_rules_to_its_recorder() -> None:
    """The default rules of a control plane are for tests: a verb that leaves them out ignores its option."""
    found = {
        path.stem: "rules" in {each.arg for each in call.keywords}
        for path in Path(wiring.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("ControlPlane", "recording_process")
    }
    assert found == dict.fromkeys(("agent", "controllers", "local", "scheduler", "server"), True)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_records_has_the_option_for_tenants(verb: str) -> None:
    field = config_fields()[verb]["decisions_tenants"]
    assert (field.type, field.default) == (list, [])
    assert config_fields()["limits"]["decisions_priority_min"].default == 1_000_000_000


def test_two_processes_of_one_component_have_a_log_each_and_readers_find_both(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib; from kedge.cli.component import own_log_folder\n"
        "with own_log_folder(pathlib.Path(sys.argv[1]), 'scheduler') as folder: print(folder.name); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    names, running = [], []
    for _ in range(2):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        running.append(process)
        names.append(process.stdout.readline().strip())
    assert names == ["scheduler-1", "scheduler-2"]
    for process in running:
        process.communicate()
    for name in names:
        log = DecisionLog(tmp_path / "decisions" / name, make_env())
        log.append(decision(f"{name}:1"))
        log.close()
    found = logged_records(tmp_path)
    assert [each.id for each in found.decisions] == ["scheduler-1:1", "scheduler-2:1"]
    assert found.undecoded == []
