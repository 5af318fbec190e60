"""The records of a running cluster: names of callers, decisions behind versions and conditions, attempts run again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.up_workload import MANIFEST, UpProcess, pods, running_up, until

LARGE = """
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  containers:
  - {name: main, image: x, command: [sleep, "1000"], resources: {requests: {cpu: "1000"}}}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpProcess]:
    file = tmp_path / "config.yaml"
    file.write_text("limits: {lease_s: 6, lease_renew_s: 4, lease_retry_s: 0.5}\n")
    with running_up(UpProcess(tmp_path / "state", "--nodes", "2", "--config", str(file))) as running:
        yield running


def kedge(cluster: UpProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "kedge", *arguments, "--state", str(cluster.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def origin(cluster: UpProcess, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "--raw", f"/kedge/origins{path}"))
    return found


def test_every_version_and_condition_leads_to_its_writer_and_attempts_are_run_again(cluster: UpProcess) -> None:
    until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    cluster.kubectl("apply", "-f", "-", stdin=LARGE)
    cluster.kubectl("create", "configmap", "settings")
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    until(lambda: "FailedScheduling" in cluster.kubectl("get", "events"), "the scheduler reports the large pod")

    web = "/apis/apps/v1/namespaces/default/deployments/web"
    newest = origin(cluster, web)
    assert newest["controller"] == "deployment"
    assert newest["decision"].startswith("deployment:")
    first = origin(cluster, f"{web}?revision={newest['created']}")
    assert (first["caller"], first["groups"], first["decision"]) == ("kedge-admin", ["system:masters"], "")
    large = "/api/v1/namespaces/default/pods/large"
    until(lambda: origin(cluster, large)["decision"].startswith("default-scheduler:"), "its condition is written")
    scheduled = origin(cluster, f"{large}?condition=PodScheduled")

    name = str(next(each["metadata"]["name"] for each in pods(cluster) if each["metadata"]["name"] != "large"))  # type: ignore[index]
    until(lambda: "start" in kedge(cluster, "timeline", name), "the log has the start")
    shown = kedge(cluster, "timeline", "web")
    assert re.search(r"\* kedge-admin +Deployment web created", shown), shown
    assert re.search(r" agent-node-[12] +Pod/default/web-[^ ]+: start \w+", shown), shown
    assert " user " not in shown
    recent = kedge(cluster, "timeline", "web", "--since", "30m")
    assert re.search(r"! faults +control-plane starts", recent), recent
    assert re.search(r"! faults +\S+: the term of this leader begins", recent), recent

    why = kedge(cluster, "why", "large", "--recheck")
    assert f"written at revision {scheduled['revision']} by default-scheduler, decision {scheduled['decision']}" in why
    assert re.search(r"recheck +[1-9]\d* decisions were run again and agree", why), why
    assert "whose caches are not in the records" not in why
    placed = kedge(cluster, "why", name, "--recheck")
    assert re.search(r"recheck +[1-9]\d* decisions were run again and agree", placed), placed
    assert "whose caches are not in the records" not in placed
    assert re.search(r"run +on node-[12], incarnation \w{8}, bind proved at revision \d+", placed), placed

    changed = kedge(cluster, "why", "web")
    assert re.search(r"changed by +kedge-admin at [-\d]+ [:\d]+: (create|patch) at revision \d+", changed), changed
    assert "; the audit log has requests since " in changed
    cluster.kubectl("delete", "deployment/web", "--as=ada", check=False)
    until(lambda: " was refused: 403 Forbidden" in kedge(cluster, "timeline", "web"), "the refusal is in the audit log")
    shown = kedge(cluster, "timeline", "web")
    assert re.search(r"\* ada +delete Deployment.apps/default/web by kedge-admin as ada was refused", shown), shown
    refused = kedge(cluster, "why", "web")
    assert re.search(r"refused +ada \(by kedge-admin\) at .*: delete: 403 Forbidden", refused), refused

    cluster.kill()
    cluster.start()
    settings = origin(cluster, "/api/v1/namespaces/default/configmaps/settings")
    assert (settings["caller"], settings["groups"]) == ("kedge-admin", ["system:masters"])
    assert re.search(r"\* kedge-admin +Deployment web created", kedge(cluster, "timeline", "web"))
