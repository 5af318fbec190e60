"""Commands that a keeper runs beside a process: probes, and programs of `exec` with streams of their own.

A command belongs to its process: it has the environment and the folder of it, and ends with it at the latest. Standard
library only, as the keeper. The result of a command is kept until it is read, for a bounded number of commands.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from kedge.agent.process import proc_table
    from kedge.agent.process.keeper_bounds import COMMANDS_MAX, RESULTS_MAX
    from kedge.agent.process.keeper_client import KeeperClient, clock_s
else:  # run as a program, without the package
    sys.path.insert(0, str(Path(__file__).parent))
    import proc_table
    from keeper_bounds import COMMANDS_MAX, RESULTS_MAX
    from keeper_client import KeeperClient, clock_s


class KeptCommand:
    """One command: it runs, or its exit code is known."""

    __slots__ = ("code", "deadline_s", "marker", "number", "pid", "waiting")

    def __init__(self, number: int, marker: str, deadline_s: float) -> None:
        self.number = number
        self.marker = marker
        self.deadline_s = deadline_s
        """The time of its kill."""
        self.pid = 0
        self.code: int | None = None
        self.waiting: list[tuple[KeeperClient, int]] = []
        """Requests whose reply is the exit code."""


class KeeperCommands:
    """The commands of one keeper."""

    def __init__(self) -> None:
        self.running: dict[int, KeptCommand] = {}
        """By pid."""
        self._by_number: dict[int, KeptCommand] = {}
        self._numbers = itertools.count(1)

    def start(self, record: Mapping[str, Any], marker: str, request: Mapping[str, Any]) -> KeptCommand:
        """Run a command beside the process of a record.

        Raises:
            ExecFailed: the program cannot run.
            ValueError: too many commands run.
        """
        if len(self.running) >= COMMANDS_MAX:
            raise ValueError(f"{COMMANDS_MAX} commands run already: wait until one has ended")
        number = next(self._numbers)
        timeout_s = request["timeout_s"]
        deadline_s = math.inf if timeout_s is None else clock_s() + float(timeout_s)
        command = KeptCommand(number, f"{marker}!{os.getpid()}.{number}", deadline_s)
        environment = {**record["env"], **request.get("env", {}), proc_table.MARKER: command.marker}
        stdio = proc_table.Stdio(*request["stdio"]) if "stdio" in request else proc_table.SILENT
        # A command is in the groups and has the mounts of its process: a kill of the process finds it too.
        mounts_of = record["pid"] if record.get("mounts") else 0
        confinement = proc_table.Confinement(tuple(record.get("cgroups", ())), mounts_of=mounts_of)
        command.pid = proc_table.spawn(request["argv"], environment, record["cwd"], stdio, lambda _: None, confinement)
        self.running[command.pid] = self._by_number[number] = command
        return command

    def wait(self, number: int, client: KeeperClient, request: int) -> None:
        """Reply with the exit code: now, or when the command ends."""
        command = self._by_number.get(number)
        if command is None:
            raise ValueError(f"command {number} is not known: the keeper was restarted, or its result was read")
        command.waiting.append((client, request))
        self._reply(command)

    def kill(self, number: int) -> bool:
        """Kill a command and everything it started."""
        command = self._by_number.get(number)
        if command is None or command.code is not None:
            return False
        command.deadline_s = clock_s()
        return True

    def ended(self, pid: int, code: int) -> KeptCommand:
        """Record the end of a command that was running."""
        command = self.running.pop(pid)
        command.code = code
        self._reply(command)
        ended = [number for number, each in self._by_number.items() if each.code is not None]
        for number in ended[: max(0, len(ended) - RESULTS_MAX)]:
            del self._by_number[number]
        return command

    def expire(self, now_s: float, *, stopping: bool) -> None:
        """Kill the commands whose time is over; every one, if the keeper stops."""
        for pid, command in self.running.items():
            if stopping or now_s >= command.deadline_s:
                proc_table.signal_group(pid, signal.SIGKILL)

    def _reply(self, command: KeptCommand) -> None:
        if command.code is None or not command.waiting:
            return
        for client, request in command.waiting:
            client.send({"id": request, "value": command.code})
        command.waiting.clear()
        del self._by_number[command.number]
