"""The process driver with real processes and a real keeper: starts once, ends whole, outlives agent and keeper."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.agent import pod_view
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import (
    POD,
    alive,
    child_pid,
    driver_in,
    ended,
    keeper_pid,
    log_of,
    only,
    pod_of,
    start,
    start_pod,
)
from tests.kit.safeguards import replaced

from kedge.agent.core.driver import CannotStart, Identity
from kedge.agent.process import ProcessDriver
from kedge.agent.process import driver as process_driver
from kedge.agent.process.driver import loopback_subnet, record_id
from kedge.api.views import LifecycleHook, PodView, Probe


def test_nodes_of_two_clusters_on_one_machine_have_addresses_of_their_own() -> None:
    folders = [Path("/state", cluster, "nodes", node) for cluster in ("a", "b") for node in ("node-1", "node-2")]
    assert len({loopback_subnet(each) for each in folders}) == 4
    assert loopback_subnet(folders[0]) == loopback_subnet(folders[0])


@on_loop
async def test_a_process_runs_and_its_exit_code_and_output_are_kept(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "echo hello $POD_NAME; exit 3")
        await eventually(ended(driver))
        found = await only(driver)
        assert (found.exit_code, found.identity, found.pod) == (3, POD, "web")
        assert log_of(tmp_path) == "hello web\n"
        await driver.forget(POD)
        assert await driver.processes() == ()


@on_loop
async def test_one_identity_is_started_once_however_often_it_is_requested(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        for _ in range(3):
            await start(driver, "sh", "-c", "echo once")
        await eventually(ended(driver))
        await start(driver, "sh", "-c", "echo once")
        assert len(await driver.processes()) == 1
        assert log_of(tmp_path) == "once\n"


@on_loop
async def test_a_stop_terminates_first_and_kills_after_the_grace_period(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done")
        await eventually(lambda: "up" in log_of(tmp_path))
        await driver.stop(POD, grace_s=0.5)
        await eventually(ended(driver))
        assert (await only(driver)).exit_code == 128 + signal.SIGKILL
        assert "asked" in log_of(tmp_path)


@on_loop
async def test_children_that_left_the_process_group_end_with_it(tmp_path: Path) -> None:
    child = "import os,time\nos.setsid()\nopen('child','w').write(str(os.getpid()))\ntime.sleep(600)"
    program = f"import os,time\nif os.fork()==0:\n  exec({child!r})\ntime.sleep(600)"
    async with driver_in(tmp_path) as driver:
        await start(driver, sys.executable, "-c", program)
        await eventually(lambda: child_pid(tmp_path) is not None)
        pid = child_pid(tmp_path)
        assert pid is not None
        assert alive(pid)
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        await eventually(lambda: not alive(pid))


@on_loop
async def test_a_process_that_is_not_kept_is_killed_by_the_keeper_alone(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600", keep_s=0.6)
        await driver.keep(POD, 1.0)
        assert (await only(driver)).running
        await eventually(ended(driver))


@on_loop
async def test_another_agent_finds_what_the_first_one_started(tmp_path: Path) -> None:
    first = ProcessDriver(tmp_path, environment=os.environ)
    await start(first, "sleep", "600")
    before = await only(first)
    await first.close()
    async with driver_in(tmp_path) as second:
        assert await only(second) == before
        assert second.address(POD.pod_uid)
        await start(second, "sleep", "600")
        assert len(await second.processes()) == 1


@on_loop
async def test_a_killed_keeper_is_replaced_and_its_processes_are_found_by_evidence(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "echo up; exec sleep 600")
        await eventually(lambda: "up" in log_of(tmp_path))
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        found = await only(driver)
        assert found.running
        await start(driver, "sh", "-c", "echo up; exec sleep 600")
        assert log_of(tmp_path) == "up\n"
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        assert (await only(driver)).reason == "ExitCodeLost"


@on_loop
async def test_a_start_that_a_kill_interrupted_is_never_repeated(tmp_path: Path) -> None:
    """The record is written before the process: a keeper that dies in between leaves a record without a process."""
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        path = tmp_path / "processes" / f"{record_id(POD)}.json"
        record = msgspec.json.decode(path.read_bytes())
        os.kill(record["pid"], signal.SIGKILL)
        path.write_bytes(msgspec.json.encode({**record, "pid": 0, "ticks": 0}))
        found = await only(driver)
        assert (found.running, found.reason) == (False, "ExitCodeLost")
        await start(driver, "sleep", "600")
        assert not (await only(driver)).running


@on_loop
async def test_a_program_that_is_not_there_ends_with_127_and_a_reason(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "/no/such/program")
        found = await only(driver)
        assert (found.running, found.exit_code, found.reason) == (False, 127, "StartError")


@on_loop
async def test_a_container_without_a_command_cannot_start(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        pod, container = pod_of()
        with pytest.raises(CannotStart, match="main") as raised:
            await start_pod(driver, pod, container)
        assert raised.value.waiting == "CreateContainerConfigError"


@on_loop
async def test_probes_run_by_command_by_http_and_by_tcp(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, sys.executable, "-m", "http.server", "18080", "--bind", "$(POD_IP)")
        http = msgspec.convert({"httpGet": {"path": "/", "port": "http"}}, Probe)
        tcp = msgspec.convert({"tcpSocket": {"port": 18080}}, Probe)
        good = msgspec.convert({"exec": {"command": ["sh", "-c", "test $POD_NAME = web"]}}, Probe)
        bad = msgspec.convert({"exec": {"command": ["false"]}}, Probe)
        slow = msgspec.convert({"exec": {"command": ["sleep", "600"]}, "timeoutSeconds": 1}, Probe)

        async def answers() -> bool:
            return not await driver.probe(POD, http)

        await eventually(answers)
        assert await driver.probe(POD, tcp) == ""
        assert await driver.probe(POD, good) == ""
        assert await driver.probe(POD, bad) == "the command ended with exit code 1"
        assert await driver.probe(POD, slow) != ""
        missing = msgspec.convert({"httpGet": {"path": "/missing", "port": "http"}}, Probe)
        assert await driver.probe(POD, missing) == "HTTP probe failed with statuscode: 404"


@on_loop
async def test_hooks_call_by_http_and_by_tcp_and_report_what_was_not_answered(tmp_path: Path) -> None:
    def hook(**action: Any) -> LifecycleHook:
        return msgspec.convert(action, LifecycleHook)

    async with driver_in(tmp_path) as driver:
        await start(driver, sys.executable, "-m", "http.server", "18080", "--bind", "$(POD_IP)")
        tcp = hook(tcpSocket={"port": "http"})
        await eventually(lambda: _succeeds(driver, tcp))
        header = {"name": "X-Reason", "value": "drain"}
        stop = hook(httpGet={"path": "/?stop", "port": 18080, "httpHeaders": [header]})
        assert await driver.run_hook(POD, stop, within_s=10) == ""
        await eventually(lambda: '"GET /?stop HTTP/1.1" 200' in log_of(tmp_path))
        missing = hook(httpGet={"path": "/missing", "port": "http"})
        assert await driver.run_hook(POD, missing, within_s=10) == "HTTP probe failed with statuscode: 404"
        assert await driver.run_hook(POD, hook(tcpSocket={"port": 18081}), within_s=10) != ""


async def _succeeds(driver: ProcessDriver, hook: LifecycleHook) -> bool:
    return await driver.run_hook(POD, hook, within_s=10) == ""


@on_loop
async def test_consumption_counts_children_too(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "while :; do :; done & wait")

        async def used() -> bool:
            found = await driver.consumption()
            return POD in found and found[POD].cpu_s > 0.05 and (found[POD].memory_bytes or 0) > 0

        await eventually(used)


@on_loop
async def test_pods_that_are_prepared_together_get_different_addresses(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        first, _ = pod_of("true")
        second = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, uid="another"))
        assert await driver.prepare(first) != await driver.prepare(second)
        for each in (first, second):
            await driver.remove(each.metadata.uid)
        assert (driver._addresses, driver._reserved_until_s) == ({}, {})  # nothing stays of pods that are gone


def port_pod(uid: str, *, address: str = "", port: int = 18443) -> tuple[PodView, Identity]:
    body = pod_view(
        metadata={"uid": uid, "name": f"pod-{uid[:1]}"},
        containers=[
            {
                "name": "main",
                "image": "x",
                "command": ["sleep", "600"],
                "ports": [{"containerPort": 80, "hostPort": port, "hostIP": address}],
            }
        ],
    )
    return body, POD._replace(pod_uid=uid)


@on_loop
async def test_two_pods_with_one_host_port_are_never_both_started(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        for pod, identity in (port_pod("a" * 8), port_pod("b" * 8, port=18444), port_pod("a" * 8)):
            await start_pod(driver, pod, pod.spec.containers[0], identity=identity)
        for pod, identity in (port_pod("c" * 8), port_pod("c" * 8, address="127.0.0.1")):
            with pytest.raises(CannotStart, match="hostPort 18443/TCP of this node is held by a process of") as refused:
                await start_pod(driver, pod, pod.spec.containers[0], identity=identity)
            assert refused.value.waiting == "HostPortConflict"
        assert len(await driver.processes()) == 2
        first = POD._replace(pod_uid="a" * 8)
        await driver.stop(first, grace_s=0)
        await eventually(lambda: has_ended(driver, first))
        pod, identity = port_pod("c" * 8)
        await start_pod(driver, pod, pod.spec.containers[0], identity=identity)
        assert [each.running for each in await driver.processes() if each.identity == identity] == [True]


async def has_ended(driver: ProcessDriver, identity: Identity) -> bool:
    return any(each.identity == identity and not each.running for each in await driver.processes())


@on_loop
async def test_the_keeper_refuses_a_held_host_port_when_two_starts_race(tmp_path: Path) -> None:
    """1. Two agents' requests both find the port free. 2. Both reach the keeper, which decides alone."""
    async with driver_in(tmp_path) as driver:
        pods = [port_pod(letter * 8) for letter in "abcd"]
        with replaced(process_driver, "port_conflict", lambda *_: ""):
            starts = (start_pod(driver, pod, pod.spec.containers[0], identity=identity) for pod, identity in pods)
            results = await asyncio.gather(*starts, return_exceptions=True)
        refused = [each for each in results if each is not None]
        assert len(refused) == 3
        assert all("hostPort 18443/TCP" in str(each) for each in refused)
        assert len([each for each in await driver.processes() if each.running]) == 1
