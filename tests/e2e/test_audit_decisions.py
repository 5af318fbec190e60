"""The audit log of a whole control plane under its least roles joins each write to the decision behind it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.audit_join import KEEP_ALL, decision_of, join, join_entries, resource_of, user_of, writes_in
from tests.e2e.judged_runs import judged_beside
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import MANIFEST, UpProcess, down_nodes, pods, processes, running_up, until
from tests.e2e.used_rights import FOUND_UNNEEDED, NEEDS, listed, unused_rights
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.audit import METADATA, entries

from kedge.cli.live import logged_records

ADMIN = "kedge-admin"


def keeping_all(tmp_path: Path) -> tuple[str, str]:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"limits": KEEP_ALL}))
    return "--config", str(file)


def work(server: ServerProcess) -> None:
    """A Deployment is applied, scaled, loses a process, is rolled out, drained and deleted."""
    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    server.kubectl("scale", "deployment/web", "--replicas=4")
    until(lambda: len(processes(server)) == 4, "four processes run")
    os.kill(next(iter(processes(server).values())), signal.SIGKILL)
    until(lambda: sum(map(restarts, pods(server))) == 1, "the process is started again")
    server.kubectl("set", "env", "deployment/web", "COLOUR=green")
    server.kubectl("rollout", "status", "deployment/web", "--timeout=90s", timeout_s=100)
    drained: Any = pods(server)[0]
    server.kubectl("drain", drained["spec"]["nodeName"], "--timeout=90s", timeout_s=100)
    until(lambda: len(processes(server)) == 4, "the drained pods run elsewhere")
    server.kubectl("delete", "deployment/web", "--wait=false")
    until(lambda: not pods(server) and not processes(server), "every pod has ended")


def restarts(pod: Any) -> int:
    return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses", ()))


def check_none_refused(server: ServerProcess) -> None:
    refused = re.findall(r"^kedge_access_refused_total\{.*", server.kubectl("get", "--raw", "/metrics"), re.M)
    assert not refused, "a component asked for more than its role allows"


def check_joined(state: Path) -> None:
    found = join(state, ADMIN)
    assert not found.unjoined, "\n".join(found.unjoined)
    assert not found.unlogged, "\n".join(found.unlogged)
    assert found.joined > 100
    events = writes_in(entries(state / "audit"))
    users = {user_of(each) for each in events if decision_of(each)}
    for expected in ("system:controller:deployment", "system:controller:replicaset", "system:node:"):
        assert any(user.startswith(expected) for user in users), users
    assert {"pods/binding", "pods/status", "replicasets"} <= {resource_of(each) for each in events}
    for each in events:
        assert each.response_status is not None
        done = 201 if each.verb == "create" else 200
        assert each.response_status.code == done or each.response_status.code >= 400, each


def test_every_write_of_a_local_cluster_joins_its_decision(tmp_path: Path) -> None:
    with running_up(UpProcess(tmp_path / "state", "--nodes", "2", *keeping_all(tmp_path))) as up:
        work(up)
        check_none_refused(up)
        assert up.stop() == 0
    check_joined(up.state)
    events, decisions = entries(up.state / "audit"), logged_records(up.state).decisions
    fewer = [each for each in decisions if each.controller != "replicaset"]
    assert join_entries(events, fewer, ADMIN).unjoined, "a missing record is found"
    fewer_entries = [each for each in events if resource_of(each) != "pods/binding"]
    assert join_entries(fewer_entries, decisions, ADMIN).unlogged, "a missing entry is found"


@pytest.mark.slow
def test_every_write_of_processes_over_https_joins_its_decision(tmp_path: Path) -> None:
    """All requests are logged: every right of a component is used, or another test needs it."""
    options = keeping_all(tmp_path)
    (policy := tmp_path / "policy.yaml").write_text(METADATA)
    with running_server(tmp_path / "state", "--audit-policy", str(policy), *options) as server:
        parts = Parts(server, tmp_path, *options)
        try:
            with judged_beside(server):
                work(server)
                check_none_refused(server)
            parts.end()
            assert server.stop() == 0
        finally:
            parts.stop()
            down_nodes(server)
    check_joined(server.state)
    unused = unused_rights(entries(server.state / "audit"))
    assert not sorted(unused - listed(NEEDS) - FOUND_UNNEEDED), (
        "take the right out of the role, or add its reason and its test to NEEDS"
    )
