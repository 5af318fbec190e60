"""An incident of a cluster with two API servers on one etcd is collected from both, and replayed from its one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.incident_clusters import replay_alone, run_kedge
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import MANIFEST, down_nodes, until
from tests.etcd_server import etcd_server, sound_etcd
from tests.kit.api_server import ServerProcess, running_server
from tests.tools import missing_tool

from kedge.cli.incidents.incident_file import summary_of
from kedge.observe.readers.recording import read_recording

pytestmark = pytest.mark.slow


class SplitParts(Parts):
    """Controllers and a node use the first server, the scheduler and the other node the second."""

    def __init__(self, server: ServerProcess, other: ServerProcess, folder: Path) -> None:
        self.other = other
        super().__init__(server, folder)

    def more_options(self, name: str) -> Sequence[str]:
        return "--server", (self.other if name in ("scheduler", "agent-b") else self.server).url


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[SplitParts]:
    binary = sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(binary))
        store = ("--store", f"etcd://{etcd.endpoint}")
        one = stack.enter_context(running_server(tmp_path / "state", *store))
        two = stack.enter_context(running_server(tmp_path / "two", *store, "--pki", str(one.state)))
        stack.callback(down_nodes, one)
        found = SplitParts(one, two, tmp_path)
        stack.callback(found.stop)
        until(lambda: one.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
        yield found


def scale(parts: Parts, replicas: int) -> None:
    parts.server.kubectl("scale", "deployment/web", f"--replicas={replicas}")
    field = f"--for=jsonpath={{.status.readyReplicas}}={replicas}"
    parts.server.kubectl("wait", "deployment/web", field, "--timeout=90s", timeout_s=100)


def test_an_incident_is_collected_from_two_servers_of_one_store(parts: SplitParts, tmp_path: Path) -> None:
    at, other = ("--state", str(parts.server.state)), ("--server", parts.other.url)
    run_kedge("incident", "start", "--name", "both", *at)
    parts.server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    parts.server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    parts.other.kill()
    parts.server.kubectl("scale", "deployment/web", "--replicas=3")
    parts.other.start(parts.other.url.removeprefix("https://"))
    scale(parts, 4)
    file = tmp_path / "both.kedge"
    printed = run_kedge("incident", "stop", "both", "--out", str(file), "--within", "30s", *other, *at)

    found = read_recording(file)
    summary = summary_of(found)
    assert summary is not None, printed
    sent = {each.name.rpartition("-")[0] for each in summary.processes if each.decisions}
    assert sent >= {"controllers", "scheduler", "agent-a", "agent-b"}, printed
    histories = [each for each in summary.processes if each.name.endswith("-history")]
    assert len(histories) == 3, f"one of the first server, two of the other: {printed}"
    assert summary.history_gaps == ()
    revisions = [each.revision for each in found.commits]
    assert revisions == sorted(set(revisions))
    replayed = replay_alone(file, tmp_path)
    assert "\nsame\n" in f"\n{replayed}", replayed
    run_kedge("incident", "delete", "both", *other, *at)
    for server in (parts.server, parts.other):
        assert "no incident is open" in run_kedge("incident", "list", "--state", str(server.state))
