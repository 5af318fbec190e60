"""The audit log of `kedge server` and `kedge up`: real kubectl over HTTPS, rotation, kill -9, and a full disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.up_workload import UpProcess, running_up
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.audit import entries, text_of
from tests.kit.full_disk import small_disk

from kedge.server.audit import AuditEvent, AuditReader

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, users: [quiet]}
- {level: RequestResponse, verbs: [create, update, patch, delete], resources: [{group: ""}, {group: apps}]}
- {level: Metadata}
"""


def kedge(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def policy(tmp_path: Path) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return str(file)


def with_limits(tmp_path: Path, **limits: float) -> tuple[str, str]:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"limits": limits}))
    return "--config", str(file)


def test_kubectl_s_requests_are_logged_and_no_secret_is(tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--audit-policy", policy(tmp_path)) as server:
        server.kubectl("create", "deployment", "web", "--image=web:1")
        server.kubectl("create", "secret", "generic", "s", "--from-literal=password=hunter2")
        server.kubectl("create", "configmap", "m", "--from-literal=password=hunter2")
        server.kubectl("get", "secret", "s", "-o", "yaml")
        server.kubectl("get", "pods", "--as", "someone", check=False)
        server.kubectl("get", "pods", "--as", "quiet", check=False)
        token = server.kubectl("create", "token", "default").strip()
        kept = kedge("token", "create", "--user", "ada", "--kubeconfig", str(server.kubeconfig)).split()[-1]
        with server.started("kubectl", "get", "pods", "-w", "--request-timeout=2s") as watch:
            watch.wait(30)
        assert server.stop() == 0
    folder = server.state / "audit"
    created = entries(folder, group="apps", resource="deployments", name="web")[0]
    assert (created.verb, created.user.username, created.level) == ("create", "kedge-admin", "RequestResponse")
    assert json.loads(bytes(created.request_object))["metadata"]["name"] == "web"
    assert created.user_agent.startswith("kubectl/")
    assert created.source_ips == ("127.0.0.1",)
    (refused,) = [each for each in entries(folder, user="someone") if each.verb == "list"]
    assert (refused.user.username, refused.annotations["kedge.dev/outcome"]) == ("kedge-admin", "Forbidden")
    stages = [each.stage for each in entries(folder, resource="pods") if each.verb == "watch"]
    assert stages == ["ResponseStarted", "ResponseComplete"]
    text = text_of(folder)
    assert "pods" in text
    for hidden in ("hunter2", "aHVudGVyMg", token, kept):
        assert hidden not in text
    printed = kedge("audit", "--state", str(server.state), "--object", "deployment/default/web")
    assert "deployments/default/web" in printed


def test_acknowledged_writes_older_than_the_stated_time_survive_a_kill(tmp_path: Path) -> None:
    """Also rotated: the newest files have every entry, and the next start goes on."""
    options = with_limits(tmp_path, audit_file_bytes_max=4_000, audit_files_max=4, audit_sync_s=0.2)
    with running_server(tmp_path / "state", "--audit-policy", "writes", *options) as server:
        for number in range(40):
            server.kubectl("create", "namespace", f"n{number}")
        time.sleep(1.0)
        server.kill()
        folder = server.state / "audit"
        before = names(folder)
        assert before[-1] == "n39"
        files = sorted(each.name for each in folder.iterdir())
        assert len(files) == 4
        assert files[0] != "audit-0000000001.log", "the oldest was removed"
        assert all(each.stat().st_size <= 4_000 for each in folder.iterdir())
        server.start()
        server.kubectl("create", "namespace", "after")
        assert server.stop() == 0
    assert names(folder)[-1] == "after"
    left = [each for each in names(folder) if each.startswith("n")]
    assert left == [f"n{number}" for number in range(40 - len(left), 40)], "no entry is missing between them"


def names(folder: Path) -> list[str]:
    found = (each for each in AuditReader(folder).read() if isinstance(each, AuditEvent) and each.object_ref)
    return [each.object_ref.name for each in found if each.object_ref and each.object_ref.resource == "namespaces"]


def test_a_strict_log_on_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        state = tmp_path / "state"
        state.mkdir()
        (state / "audit").symlink_to(disk)
        options = ("--audit-policy", "writes", "--audit-strict", *with_limits(tmp_path, audit_sync_s=0.1))
        with running_server(state, *options) as server:
            filler = disk / "filler"
            filler.write_bytes(b"x" * 40_000)
            refused = fill_until_refused(server)
            assert "the audit log cannot be written" in refused
            assert server.kubectl("get", "namespaces", "-o", "name"), "reads are served"
            filler.unlink()
            deadline = time.monotonic() + 30
            while "created" not in server.kubectl("create", "namespace", "later", check=False):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert server.stop() == 0
        stored = names(disk)
        assert stored[-1] == "later"
        ids = [each.audit_id for each in entries(disk)]
        assert len(ids) == len(set(ids)), "a group of entries that was written again is there once"


def fill_until_refused(server: ServerProcess) -> str:
    for number in range(200):
        printed = server.kubectl("create", "namespace", f"n{number}", "--request-timeout=40s", check=False)
        if "created" not in printed:
            return printed
    raise AssertionError("the disk did not fill")


def test_kedge_up_keeps_the_metadata_of_writes_and_a_decision_leads_to_them(tmp_path: Path) -> None:
    with running_up(UpProcess(tmp_path / "state", "--nodes", "1")) as up:
        up.kubectl("create", "deployment", "web", "--image=web:1")
        folder, found = up.state / "audit", list[AuditEvent]()
        deadline = time.monotonic() + 60
        while not found:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            found = [each for each in entries(folder, group="apps", resource="replicasets") if each.verb == "create"]
    (made, *_) = found
    decision = made.annotations["kedge.dev/decision"]
    assert decision.startswith("deployment:")
    assert made.user.username == "system:kedge-control-plane"
    printed: list[dict[str, Any]] = [
        json.loads(line)
        for line in kedge("audit", "--state", str(up.state), "--decision", decision, "-o", "json").splitlines()
    ]
    assert made.audit_id in [each["auditID"] for each in printed]
    assert {each["level"] for each in printed} == {"Metadata"}
    assert not [each for each in entries(folder) if each.verb in ("get", "list", "watch")]
