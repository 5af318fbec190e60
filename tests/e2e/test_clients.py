"""Unmodified Kubernetes clients against `kedge server` over HTTPS.

Each runs a program of `tests/e2e/clients` in a process of its own: it has its own loop and threads, and may warn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.up_workload import MANIFEST, UpProcess, running_up, until
from tests.kit.api_server import ServerProcess, running_server

PROGRAMS = Path(__file__).parent / "clients"
SESSION_S_MAX = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("clients") / "state") as running:
        yield running


def environment(server: ServerProcess) -> dict[str, str]:
    # An empty PYTHONWARNINGS: these programs may warn.
    return {**server.client_environment, "PYTHONWARNINGS": ""}


@pytest.mark.parametrize("client", ["kubernetes", "leader", "kubernetes_asyncio", "lightkube", "kr8s"])
def test_a_session_with_each_client_library(server: ServerProcess, client: str) -> None:
    check_session(server, client)


def check_session(server: ServerProcess, client: str) -> None:
    """Run the program of a client to its end."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{client}_session.py")],
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=SESSION_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), f"{done.stdout}{done.stderr}\n{server.log}"


SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unschedulable}
spec: {containers: [{name: main, image: label-only, resources: {requests: {cpu: "9999"}}}]}
"""


def test_typed_clients_list_every_kind_of_a_live_cluster(tmp_path: Path) -> None:
    with running_up(UpProcess(tmp_path / "state", "--nodes", "1")) as cluster:
        until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 1, "the node is ready")
        cluster.kubectl("apply", "-f", "-", stdin=MANIFEST + SERVICE)
        until(lambda: "FailedScheduling" in cluster.kubectl("get", "events"), "an event of the scheduler")
        until(lambda: "web-" in cluster.kubectl("get", "endpointslices"), "the endpoints of the service")
        cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
        check_session(cluster, "typed_lists")


class Operator:
    """The kopf operator and the calls of its handlers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text()

    def notes(self, handler: str, name: str) -> list[dict[str, Any]]:
        whole = self.text.rpartition("\n")[0].splitlines()  # the last line may be half written
        lines = [line.partition("NOTE ")[2] for line in whole if line.startswith("NOTE ")]
        notes = [json.loads(line) for line in lines]
        return [each for each in notes if (each["handler"], each["name"]) == (handler, name)]

    def wait_note(self, handler: str, name: str, count: int = 1) -> dict[str, Any]:
        self.wait(f"{count} calls of {handler} for {name}", lambda: len(self.notes(handler, name)) >= count)
        return self.notes(handler, name)[count - 1]

    def wait(self, wanted: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, f"kopf ended: {self.text}"
            assert time.monotonic() < deadline, f"no {wanted} in 60 s: {self.text}"
            time.sleep(0.05)


@contextmanager
def kopf_operator(server: ServerProcess, log: Path, *, streaming: bool = False) -> Iterator[Operator]:
    """With `streaming` it begins with a watch that sends the initial objects, without a list."""
    command = ["-m", "kopf", "run", "--standalone", "--all-namespaces", str(PROGRAMS / "kopf_operator.py")]
    settings = {**environment(server), **({"INITIAL_STREAMING": "1"} if streaming else {})}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *command], env=settings, stdout=output, stderr=subprocess.STDOUT)
    operator = Operator(process, log)
    try:
        operator.wait("start", lambda: "Initial authentication has finished" in operator.text)
        yield operator
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def handled(server: ServerProcess, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.kubectl("get", kind, name, "-o", "json"))
    return found


def create_config_map(server: ServerProcess, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"session": "kopf"}}}
    server.kubectl("create", "-f", "-", stdin=json.dumps({**body, "data": {"a": "1"}}))


def test_a_kopf_operator_handles_the_whole_life_of_an_object(server: ServerProcess, tmp_path: Path) -> None:
    with kopf_operator(server, tmp_path / "kopf.log") as operator:
        create_config_map(server, "life")
        assert operator.wait_note("create", "life")["retry"] == 1
        operator.wait_note("timer", "life", 3)
        operator.wait_note("daemon-started", "life")
        operator.wait("label", lambda: handled(server, "cm", "life")["metadata"]["labels"].get("seen") == "yes")
        metadata = handled(server, "cm", "life")["metadata"]
        assert metadata["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
        assert "kopf.zalando.org/last-handled-configuration" in metadata["annotations"]

        server.kubectl("patch", "cm", "life", "--type=merge", "-p", '{"data":{"a":"2"}}')
        note = operator.wait_note("update", "life")
        assert (note["old"], note["new"]) == ({"a": "1"}, {"a": "2"})

        # The finalizer holds the object until the delete handler has run and the daemon has stopped.
        server.kubectl("delete", "cm", "life", "--wait", "--timeout=30s")
        assert operator.notes("delete", "life")[0]["finalizers"] == metadata["finalizers"]
        assert len(operator.notes("daemon-stopped", "life")) == 1
        assert "NotFound" in server.kubectl("get", "cm", "life", check=False)
        assert len(operator.notes("create", "life")) == len(operator.notes("update", "life")) == 1


def test_a_kopf_operator_writes_status_and_events(server: ServerProcess, tmp_path: Path) -> None:
    server.kubectl("create", "deployment", "watched", "--image=x", "--replicas=2")
    server.kubectl("label", "deployment", "watched", "session=kopf")
    with kopf_operator(server, tmp_path / "kopf.log", streaming=True) as operator:
        assert operator.wait_note("deployed", "watched")["replicas"] == 2
        status = {"replicas": 2}
        operator.wait(
            "status", lambda: handled(server, "deploy", "watched").get("status", {}).get("deployed") == status
        )
        operator.wait("event", lambda: "the operator saw it" in server.kubectl("describe", "deployment", "watched"))
        server.kubectl("delete", "deployment", "watched")
        operator.wait("deletion", lambda: operator.notes("event", "watched")[-1]["type"] == "DELETED")


def test_a_kopf_operator_continues_after_the_server_was_killed(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server, kopf_operator(server, tmp_path / "kopf.log") as operator:
        create_config_map(server, "kept")
        operator.wait_note("create", "kept")
        operator.wait("finish", lambda: "Creation is processed" in operator.text)
        server.kill()
        server.start(server.url.removeprefix("https://"))
        server.kubectl("patch", "cm", "kept", "--type=merge", "-p", '{"data":{"a":"2"}}')
        operator.wait_note("update", "kept")
        server.kubectl("delete", "cm", "kept", "--wait", "--timeout=30s")
        assert len(operator.notes("create", "kept")) == 1
        assert operator.notes("delete", "kept")  # kopf repeats it while the daemon still stops
