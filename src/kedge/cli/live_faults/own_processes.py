"""Signals to the processes of one state folder, and to no others.

A process is named by the records and sockets in the folder, and proved by its start time and marker before every
signal. Each stopped process is known to a guard, which continues it even if this process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.agent.process import proc_table
from kedge.agent.process.channel import SOCKET as KEEPER_SOCKET
from kedge.cli.live_faults import guard
from kedge.cli.state_folder import UP_LOCK, holder_of
from kedge.errors import NotFound, Unavailable

_CONNECT_S = 1.0
_CREDENTIALS = struct.Struct("iii")  # struct ucred: pid, uid, gid


class OwnProcesses:
    """The processes of the cluster in one state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state.absolute()
        self._stopped: set[tuple[int, int]] = set()
        """Pid and start time of each process that is stopped now."""
        self._guard: subprocess.Popen[str] | None = None

    # -- finding -----------------------------------------------------------------------------------

    @property
    def up(self) -> int:
        """The process of `kedge up`; 0 if none runs. The kernel names it: it holds the lock of the folder."""
        return holder_of(self._state / UP_LOCK)

    def up_entry(self) -> proc_table.ProcEntry | None:
        return proc_table.read_entry(self.up) if self.up else None

    def nodes(self) -> list[str]:
        return sorted(each.name for each in (self._state / "nodes").glob("*") if each.is_dir())

    def keeper(self, node: str) -> int:
        """The keeper of a node, as the kernel names the process behind its socket; 0 if none runs."""
        folder = os.open(self._folder(node), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CONNECT_S)  # a stopped keeper accepts nothing, and its backlog may be full
                connection.connect(f"/proc/self/fd/{folder}/{KEEPER_SOCKET}")
                shown = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                return int(_CREDENTIALS.unpack(shown)[0])
        except OSError:
            return 0
        finally:
            os.close(folder)

    def of_node(self, node: str) -> list[proc_table.ProcEntry]:
        """Every process of a node: its keeper first, the processes of pods, and what these have started."""
        table = proc_table.read_table()
        roots = [pid for record in self._records(node) if (pid := self._proved(record))]
        keeper = self.keeper(node)
        if keeper in table:
            roots.append(keeper)
        found = sorted(proc_table.descendants(table, roots), key=lambda pid: (pid != keeper, pid))
        return [table[pid] for pid in found if table[pid].runs]

    def of_pod(self, pod_uid: str) -> list[proc_table.ProcEntry]:
        """The processes of a pod, without what they have started."""
        records = (record for node in self.nodes() for record in self._records(node))
        pids = [self._proved(record) for record in records if record["identity"][0] == pod_uid]
        return [entry for pid in pids if pid and (entry := proc_table.read_entry(pid)) is not None]

    def doubles(self) -> Iterator[str]:
        """Containers of which two processes run."""
        seen: dict[tuple[str, str], str] = {}
        for node in self.nodes():
            for record in self._records(node):
                uid, container = record["identity"][:2]
                if self._proved(record):
                    if (uid, container) in seen:
                        where = f"{seen[uid, container]} and {node}"
                        yield f"{record['namespace']}/{record['pod']} runs on {where} at the same time"
                    seen[uid, container] = node

    def _folder(self, node: str) -> Path:
        if node not in self.nodes():
            raise NotFound(f"there is no node {node} in {self._state}: it has {', '.join(self.nodes()) or 'none'}")
        return self._state / "nodes" / node

    def _records(self, node: str) -> Iterator[dict[str, Any]]:
        for path in sorted((self._folder(node) / "processes").glob("*.json")):
            with suppress(OSError, ValueError):  # it is being replaced
                record = json.loads(path.read_bytes())
                if not record["ended"]:
                    yield record | {"marker": f"{self._folder(node)}/{record['id']}"}

    def _proved(self, record: dict[str, Any]) -> int:
        """The pid of a record, if that process still runs and has the marker of this folder; else 0."""
        pid = int(record["pid"])
        alive = proc_table.is_alive(pid, record["ticks"]) and proc_table.read_marker(pid) == record["marker"]
        return pid if alive else 0

    # -- signals -----------------------------------------------------------------------------------

    def kill(self, entries: Iterable[proc_table.ProcEntry]) -> int:
        """SIGKILL each. Returns how many there were."""
        return sum(_signal(each, signal.SIGKILL) for each in entries)

    def stop(self, entries: Iterable[proc_table.ProcEntry]) -> int:
        """SIGSTOP each, in this order. Returns how many there were."""
        count = 0
        for each in entries:
            self._notify_guard("+", each)
            self._stopped.add((each.pid, each.start_ticks))
            count += _signal(each, signal.SIGSTOP)
        return count

    def resume(self, entries: Iterable[proc_table.ProcEntry]) -> None:
        for each in entries:
            if (each.pid, each.start_ticks) in self._stopped:
                _signal(each, signal.SIGCONT)
                self._stopped.discard((each.pid, each.start_ticks))
                self._notify_guard("-", each)

    def close(self) -> None:
        """Continue everything that is stopped."""
        for pid, ticks in sorted(self._stopped):
            entry = proc_table.read_entry(pid)
            if entry is not None and entry.start_ticks == ticks:
                _signal(entry, signal.SIGCONT)
        self._stopped.clear()
        if self._guard is not None:
            with suppress(OSError), self._guard:  # closes its input, at which it ends
                pass
            self._guard = None

    def _notify_guard(self, sign: str, entry: proc_table.ProcEntry) -> None:
        if self._guard is None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches chaos alone
            )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        try:
            print(sign, entry.pid, entry.start_ticks, file=self._guard.stdin, flush=True)
            answered = self._guard.stdout.readline()
        except OSError:
            answered = ""
        if not answered and sign == "+":
            raise Unavailable("the guard of paused processes has ended: nothing more is paused; run kedge chaos again")


def _signal(entry: proc_table.ProcEntry, number: int) -> bool:
    """Signal a process through a descriptor: the pid cannot be another one's between the check and the signal."""
    try:
        descriptor = os.pidfd_open(entry.pid)
    except OSError:
        return False
    try:
        if not proc_table.is_alive(entry.pid, entry.start_ticks):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
