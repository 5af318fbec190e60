"""The example in `kedge up`: risk-api calls features by name, through the proxy of its node."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.up_workload import UpProcess, running_up, until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpProcess]:
    with running_up(UpProcess(tmp_path / "state", "--nodes", "2")) as running:
        yield running


def example(name: str) -> str:
    """A manifest of the examples, with this interpreter: the nodes have no other that knows kedge."""
    return (files("kedge.examples") / f"{name}.yaml").read_text().replace("python3", sys.executable)


def score(cluster: UpProcess, pod: str) -> dict[str, Any]:
    program = (
        "import os,urllib.request as u; print(u.urlopen('http://'+os.environ['POD_IP']+':8080/a').read().decode())"
    )
    found: dict[str, Any] = json.loads(cluster.kubectl("exec", pod, "--", sys.executable, "-c", program))
    return found


def test_risk_api_calls_features_by_name(cluster: UpProcess) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=example("features"))
    cluster.kubectl("wait", "deployment/features", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    cluster.kubectl("apply", "-f", "-", stdin=example("risk-api").replace("DoNotSchedule", "ScheduleAnyway"))
    cluster.kubectl("wait", "deployment/risk-api", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    pods = cluster.kubectl("get", "pods", "-l", "app=risk-api", "-o", "name").split()
    until(lambda: all(score(cluster, pod)["features"] for pod in pods), "every pod reaches the Service")
    found = score(cluster, pods[0])["features"]
    assert found["length"] == 2
    assert found["pod"].startswith("features-")

    cluster.kubectl("scale", "deployment/features", "--replicas=0")
    until(lambda: score(cluster, pods[0])["features"] is None, "a Service without endpoints refuses")
    cluster.kubectl("scale", "deployment/features", "--replicas=1")
    until(lambda: bool(score(cluster, pods[0])["features"]), "the Service is back at the same address")
