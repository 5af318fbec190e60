"""The parts of a cluster as processes over HTTPS, each with the default role of its component."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.kit.api_server import ServerProcess

from kedge.api.access import CONTROLLERS, NODES, SCHEDULERS
from kedge.keys import NODE_USER_PREFIX
from kedge.server.http.certificates import Authority

IDENTITIES = {
    "controllers": ("kedge-controllers", CONTROLLERS),
    "scheduler": ("kedge-scheduler", SCHEDULERS),
    "agent": (NODE_USER_PREFIX, NODES),
}
"""User and group of each component; the user of an agent ends in its node."""


class Parts:
    """A server, controllers, a scheduler and two agents."""

    def __init__(
        self, server: ServerProcess, folder: Path, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """`options` and `environment` are given to every component."""
        self.server = server
        self.folder = folder
        self.options = options
        self.environment = {**os.environ, **(environment or {})}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("controllers", "scheduler", "agent-a", "agent-b"):
            self.start(name)

    def start(self, name: str) -> None:
        verb, _, node = name.partition("-")
        state = self.state_of(name)
        more = ["--state", str(state), "--name", node] if node else ["--state", str(state)]
        command = [sys.executable, "-m", "kedge", verb, "--kubeconfig", str(self.identity(verb, node)), *more]
        command += ["--metrics-listen", "127.0.0.1:0", *self.options, *self.more_options(name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment_of(name))

    def state_of(self, name: str) -> Path:
        """The folder of a component: agents have their own, the others share that of the server."""
        node = name.partition("-")[2]
        return self.nodes / node if node else self.server.state

    def more_options(self, name: str) -> Sequence[str]:
        """Options of one component."""
        del name
        return ()

    def environment_of(self, name: str) -> dict[str, str]:
        del name
        return self.environment

    def identity(self, verb: str, node: str) -> Path:
        """A kubeconfig with the user and the group of a component."""
        user, group = IDENTITIES[verb]
        path, now = self.folder / f"{verb}-{node}.kubeconfig", datetime.now(UTC)
        authority = Authority.ensure(self.server.state, now)
        authority.ensure_kubeconfig(path, self.server.url, f"{user}{node}", (group,), now)
        return path

    @property
    def nodes(self) -> Path:
        return self.folder / "state" / "nodes"

    def metrics(self, name: str) -> str:
        """The page of metrics of a process, at the address that it printed; empty before it serves one."""
        found = re.findall(r"serves (http://\S+)", (self.folder / f"{name}.log").read_text())
        if not found:
            return ""
        with urllib.request.urlopen(found[-1], timeout=60) as reply:
            return str(reply.read().decode())

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait(30)

    def end(self) -> None:
        """Every component ends in order, with its records on disk."""
        for each in self.running.values():
            each.terminate()
        for each in self.running.values():
            assert each.wait(60) == 0

    def stop(self) -> None:
        for each in self.running.values():
            each.kill()
            each.wait(30)
