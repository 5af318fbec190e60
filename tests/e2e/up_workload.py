"""A workload of real processes, and how tests look at it: by the records of the keepers, not by the API alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.e2e.judged_runs import judged_beside
from tests.kit.api_server import ServerProcess

MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: label-only
        command: [sh, -c, "echo started $POD_NAME; exec sleep 100000"]
"""


class UpProcess(ServerProcess):
    """`kedge up` instead of `kedge server`."""

    verb = "up"


class LocalUp(UpProcess):
    """`kedge up` with commands of kedge beside those of kubectl."""

    def kedge(self, *arguments: str, stdin: str = "", code: int = 0, **environment: str) -> str:
        """Run a command and return its stdout; of one that must fail, its stderr."""
        stdout, stderr = self.streams(*arguments, stdin=stdin, code=code, **environment)
        return stderr if code else stdout

    def streams(self, *arguments: str, stdin: str = "", code: int = 0, **environment: str) -> tuple[str, str]:
        """Run a command and return its stdout and stderr."""
        done = subprocess.run(
            [sys.executable, "-m", "kedge", *arguments],
            env={**self.client_environment, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout, done.stderr


_Up = TypeVar("_Up", bound=UpProcess)


@contextmanager
def running_up(running: _Up) -> Iterator[_Up]:
    """A local cluster that is started, judged and leaves no process behind."""
    running.start()
    try:
        with judged_beside(running):
            yield running
    finally:
        running.end()
        down_nodes(running)


def down_nodes(cluster: ServerProcess) -> None:
    subprocess.run([sys.executable, "-m", "kedge", "down", "--state", str(cluster.state), "--grace", "0"], check=True)


def until(holds: Callable[[], bool], what: str, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not in {within_s} s: {what}"
        time.sleep(0.2)


def pods(cluster: ServerProcess) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(cluster.kubectl("get", "pods", "-o", "json"))["items"]
    return found


def processes(cluster: ServerProcess) -> dict[str, int]:
    """Pids that run, by record, as the keepers wrote them down."""
    return processes_below(cluster.state)


def processes_below(state: Path) -> dict[str, int]:
    found = {}
    for path in state.glob("nodes/*/processes/*.json"):
        with suppress(FileNotFoundError):  # forgotten meanwhile
            record = json.loads(path.read_text())
            if not record["ended"]:
                found[path.stem] = int(record["pid"])
    return found


def is_running(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()
