"""Each alert is raised in a real cluster, and the commands of its runbook page are run there.

promtool evaluates the rules on the metrics scraped from that cluster. Only the time is shortened: the metrics of the
start stand for the first 22 minutes, and those of the moment for the rest.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.up_workload import UpProcess, running_up, until
from tests.kit.alert_rules import ALERTS, evaluate_rules
from tests.kit.full_disk import small_disk

from kedge.cli.live_faults.fault_socket import FaultClient, PlaceFault
from kedge.cli.live_faults.links import CONTROL_PLANE, LinkCut, LinkDelay, LinkFault

ROOT = Path(__file__).parents[2]
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
LIMITS = {"slo_time_to_bound_s": 1.0, "slo_time_to_ready_s": 3.0}
HOLD = "owner=ada until=2099-01-01T00:00:00Z reason=test"
WORKLOADS = f"""
apiVersion: v1
kind: Pod
metadata: {{name: huge}}
spec:
  containers: [{{name: main, image: label-only, command: [sleep, "1000"], resources: {{requests: {{cpu: "5000"}}}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: slow}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: label-only
    command: [sh, -c, "echo warming up; exec sleep 1000"]
    readinessProbe: {{exec: {{command: ["false"]}}, periodSeconds: 1}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: held, annotations: {{"hold.kedge.dev/deployment": "{HOLD}"}}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: held}}}}
  template:
    metadata: {{labels: {{app: held}}}}
    spec: {{containers: [{{name: main, image: label-only, command: [sleep, "1000"]}}]}}
"""
DEPLOYMENT_OF_NONE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: many-NUMBER}
spec:
  replicas: 0
  selector: {matchLabels: {app: many-NUMBER}}
  template:
    metadata: {labels: {app: many-NUMBER}}
    spec: {containers: [{name: main, image: label-only}]}
---
"""
Scrape = dict[str, float]


class WatchedCluster(UpProcess):
    """`kedge up`, its metrics, and the alerts that they raise."""

    def __init__(self, state: Path, folder: Path, *options: str) -> None:
        super().__init__(state, *options)
        self._folder = folder
        self.before: Scrape = {}

    def scrape(self) -> Scrape:
        """Every sample, by its series in the words of promtool."""
        found = {}
        for family in text_string_to_metric_families(self.kubectl("get", "--raw", "/metrics")):
            for sample in family.samples:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
                series = f'{sample.name}{{instance="up"{"," if labels else ""}{labels}}}'
                if not math.isnan(sample.value):
                    found[series] = min(sample.value, 1e9)
        return found

    def raised(self) -> list[str]:
        """The alerts that fire on the metrics of now, after those of the start."""
        named = set(re.findall(r"\bkedge_\w+", " ".join(rule["expr"] for rule in ALERTS.values())))
        series = {}
        for name, value in self.scrape().items():
            if name.partition("{")[0] in named:
                first = self.before.get(name)
                series[name] = f"{'_x22' if first is None else f'{first}x21'} {value}x20"
        return evaluate_rules(series, self._folder)

    def check_alert(self, alert: str, **names: str) -> None:
        """The alert is raised soon, and the commands of its page work meanwhile."""
        until(lambda: alert in self.raised(), f"{alert} is raised", within_s=150.0)
        page = (ROOT / ALERTS[alert]["annotations"]["runbook"]).read_text()
        lines = [line for block in COMMANDS.findall(page) for line in block.splitlines()]
        assert len(lines) >= 2
        for line in lines:
            self._run_command(line, {"DIR": str(self.state), **names})

    def _run_command(self, line: str, names: dict[str, str]) -> None:
        words = [names.get(word, word) for word in shlex.split(line)]
        assert words[0] == "kedge"
        assert not [word for word in words if re.fullmatch(r"[A-Z]{3,}", word)], f"no value for a name in {line!r}"
        done = self._kedge(*words[1:])
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert (done.stdout + done.stderr).strip(), f"{line} printed nothing"

    def runs(self, *words: str) -> bool:
        return self._kedge(*words).returncode == 0

    def _kedge(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kedge", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def fault(self, fault: LinkFault) -> Iterator[None]:
        """A fault on the link of controllers and scheduler."""
        with asyncio.Runner() as runner:
            client = runner.run(FaultClient.connect(self.state))
            runner.run(client.ask(PlaceFault(CONTROL_PLANE, fault)))
            try:
                yield
            finally:
                client.close()


@contextmanager
def watched_cluster(state: Path, folder: Path, **limits: int) -> Iterator[WatchedCluster]:
    config = folder / "config.yaml"
    config.write_text(json.dumps({"limits": {**LIMITS, **limits}}))
    with running_up(WatchedCluster(state, folder, "--nodes", "1", "--config", str(config))) as up:
        until(lambda: leads(up), "the control plane leads")
        until(lambda: not up.raised(), "no alert is raised by a cluster without faults")
        up.before = up.scrape()
        yield up


def deployments(count: int) -> str:
    return "".join(DEPLOYMENT_OF_NONE.replace("NUMBER", str(number)) for number in range(count))


def leads(up: WatchedCluster) -> bool:
    leading = [value for name, value in up.scrape().items() if name.startswith("kedge_runtime_leading{")]
    return bool(leading) and min(leading) == 1.0


@pytest.mark.slow
def test_alerts_of_pods_queues_caches_and_leaders(tmp_path: Path) -> None:
    with watched_cluster(tmp_path / "kedge", tmp_path) as up:
        up.kubectl("apply", "-f", "-", stdin=WORKLOADS)
        up.check_alert("KedgePodsUnschedulable", POD="huge")
        up.check_alert("KedgeTimeToBoundBurn", POD="huge")
        up.check_alert("KedgeTimeToReadyBurn", POD="slow")
        with up.fault(LinkDelay(4.0)):  # every request of the controllers takes so long
            up.kubectl("apply", "-f", "-", stdin=deployments(200))
            up.check_alert("KedgeQueueOld", NAME="deployment")
            up.check_alert("KedgeGenerationBehind", NAME="many-0")
        with up.fault(LinkCut()):
            up.check_alert("KedgeNoLeader")
            up.check_alert("KedgeCacheStale", POD="huge")
        until(lambda: leads(up), "the control plane leads again")
        until(lambda: not {"KedgeNoLeader", "KedgeCacheStale"}.intersection(up.raised()), "its alerts end")


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """A disk without a free byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.slow
def test_alerts_of_a_full_disk(tmp_path: Path) -> None:
    # With a larger reserve the decision log would be written to the room that the store gives up.
    small = {"store_reserve_bytes": 4096}
    with small_disk(tmp_path / "disk", "32m") as disk, watched_cluster(disk / "kedge", tmp_path, **small) as up:
        up.kubectl("apply", "-f", "-", stdin=WORKLOADS)
        until(lambda: up.runs("timeline", "held", "--state", str(up.state)), "a decision about a workload is logged")
        big = tmp_path / "big"
        big.write_bytes(os.urandom(100_000).hex().encode())
        with ExitStack() as filled:
            with up.fault(LinkDelay(3.0)):  # the controllers see the new workloads, and decide on the full disk
                up.kubectl("apply", "-f", "-", stdin=deployments(10))
                filled.enter_context(full(disk))

            def write(number: int) -> bool:
                said = up.kubectl("create", "configmap", f"big-{number}", f"--from-file={big}", check=False)
                return "nothing was written" in said or "rror" in said

            numbers = iter(range(1_000))
            until(lambda: write(next(numbers)), "a write is refused")
            up.check_alert("KedgeStoreAlarm", FILE=str(tmp_path / "backup"))
            up.check_alert("KedgeDecisionRecordsLost", NAME="held")
            up.check_alert("KedgeApiAvailabilityBurn")
        up.kubectl("create", "configmap", "after")


def test_every_alert_is_raised_by_one_of_these_tests() -> None:
    source = Path(__file__).read_text()
    assert set(re.findall(r'check_alert\("(\w+)"', source)) == set(ALERTS)
