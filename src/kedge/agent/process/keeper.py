"""The keeper of one node's processes: a small program that starts them, waits for them and remembers how they ended.

It runs alone, with the standard library only (`python -I -S keeper.py FOLDER`), and serves lines of JSON on a Unix
socket. Processes are its children; as a subreaper it also inherits their orphans. One record a process is written
before the process is started, so a keeper that is killed anywhere leaves evidence: its successor finds running
processes by pid, start time and a marker in their environment, and never starts one twice.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MARKER = "KEDGE_PROCESS"
"""Environment variable of every process that a keeper starts: the id of its record."""
LINE_BYTES_MAX = 4 * 1024 * 1024
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Record = dict[str, Any]


class ProcessKeeper:
    """Holds the processes of one node until a request releases them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, Record] = {}
        self._by_pid: dict[int, str] = {}
        self._commands: dict[int, tuple[_Client, int, float]] = {}
        """Probe commands that run, by pid: the client, its request, and when the command is killed."""
        self._selector = selectors.DefaultSelector()
        self._clients: set[_Client] = set()
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._stopping = False
        self._done = False

    # -- start and recovery ------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the records of an earlier keeper and find out which of their processes still run."""
        records = self._folder / "processes"
        records.mkdir(parents=True, exist_ok=True)
        for path in sorted(records.glob("*.json")):
            try:
                record = json.loads(path.read_text())
            except ValueError:
                path.unlink()  # cut short while it was written, so nothing was started for it
                continue
            self._records[record["id"]] = record
        marked = dict(_marked()) if any(not each["ended"] for each in self._records.values()) else {}
        for record in self._records.values():
            if record["ended"]:
                continue
            pid = record["pid"] or next((pid for pid, found in marked.items() if found == record["id"]), 0)
            if record["boot"] == self._boot and pid and _is_alive(pid, record["ticks"]):
                record["pid"], record["ticks"] = pid, _start_ticks(pid)
                self._by_pid[pid] = record["id"]
                self._write(record)
            else:
                self._end(record, 255, "ExitCodeLost")

    def serve(self, path: Path) -> None:
        """Answer requests until `shutdown`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        listener.bind(str(partial))
        partial.chmod(0o600)
        listener.listen(16)
        partial.replace(path)  # only a socket that listens has the name
        wake, poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self._selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        while not self._done:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self._reap()
            self._watch_adopted()
            self._expire()
        path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(0)
        client = _Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: _Client) -> None:
        lines = client.lines()
        if lines is None:
            self._selector.unregister(client.connection)
            self._clients.discard(client)
            client.connection.close()
            return
        for line in lines:
            request = json.loads(line)
            try:
                answer = self._answer(client, request)
            except (OSError, KeyError, ValueError) as error:
                client.send({"id": request.get("id"), "error": f"{type(error).__name__}: {error}"})
                continue
            if answer is not None:
                client.send({"id": request["id"], "value": answer})

    # -- requests ----------------------------------------------------------------------------------

    def _answer(self, client: _Client, request: dict[str, Any]) -> Any:
        match request["op"]:
            case "start":
                return self._start(request)
            case "stop":
                return self._stop(request["process"], request["grace_s"])
            case "keep":
                return self._keep(request["process"], request["for_s"])
            case "list":
                return list(self._records.values())
            case "forget":
                return self._forget(request["process"])
            case "run":
                return self._run(client, request)
            case "consumption":
                return self._consumption()
            case "shutdown":
                return self._shutdown(request["grace_s"])
            case other:
                raise ValueError(f"the keeper has no operation {other}: restart it with the version of its agent")

    def _start(self, request: dict[str, Any]) -> bool:
        """Start a process, unless one was ever started for this record."""
        record: Record = request["record"]
        if record["id"] in self._records:
            return False
        record |= {
            "pid": 0, "ticks": 0, "boot": self._boot, "ended": "", "exit_code": 0, "reason": "",
            "started": _now(), "since_s": time.monotonic(), "kill_at_s": None,
        }  # fmt: skip
        keep_s = request.get("keep_s")
        record["keep_until_s"] = None if keep_s is None else time.monotonic() + keep_s
        self._write(record)
        self._records[record["id"]] = record
        try:
            environment = {**record["env"], MARKER: record["id"]}
            record["pid"] = _spawn(record["argv"], environment, record["cwd"], record["log"])
        except OSError as error:
            self._end(record, 127 if error.errno == errno.ENOENT else 126, "StartError", str(error))
            return True
        record["ticks"] = _start_ticks(record["pid"])
        self._by_pid[record["pid"]] = record["id"]
        self._write(record)
        self._notify(record)
        return True

    def _stop(self, process: str, grace_s: float) -> bool:
        record = self._records.get(process)
        if record is None or record["ended"]:
            return False
        deadline_s = time.monotonic() + grace_s
        if record["kill_at_s"] is None:
            _signal_group(record["pid"], signal.SIGTERM)
        if record["kill_at_s"] is None or deadline_s < record["kill_at_s"]:
            record["kill_at_s"] = deadline_s
            self._write(record)
        return True

    def _keep(self, process: str, for_s: float) -> bool:
        record = self._records.get(process)
        if record is None or record["ended"] or record["keep_until_s"] is None:
            return False
        record["keep_until_s"] = time.monotonic() + for_s
        self._write(record)
        return True

    def _forget(self, process: str) -> bool:
        record = self._records.get(process)
        if record is None or not record["ended"]:
            return False
        self._path(record).unlink(missing_ok=True)
        del self._records[process]
        return True

    def _run(self, client: _Client, request: dict[str, Any]) -> None:
        """Run a command beside a process, such as a probe. The reply comes when it ends."""
        record = self._records[request["process"]]
        pid = _spawn(request["argv"], {**record["env"], MARKER: f"{record['id']}!"}, record["cwd"], os.devnull)
        self._commands[pid] = client, request["id"], time.monotonic() + request["timeout_s"]

    def _consumption(self) -> dict[str, Any]:
        parents, used = _process_table()
        totals: dict[str, list[int]] = {}
        for pid, (ticks, pages) in used.items():
            above, seen = pid, 0
            while above not in self._by_pid and above in parents and seen < 100:
                above, seen = parents[above], seen + 1
            owner = self._by_pid.get(above)
            if owner is not None:
                total = totals.setdefault(owner, [0, 0])
                total[0] += ticks
                total[1] += pages
        return {owner: {"cpu_s": ticks / _TICKS, "bytes": pages * _PAGE} for owner, (ticks, pages) in totals.items()}

    def _shutdown(self, grace_s: float) -> bool:
        """Stop every process, then end."""
        for process, record in self._records.items():
            if not record["ended"]:
                self._stop(process, grace_s)
        self._stopping = True
        return True

    # -- ends --------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Wait for every child that has ended: processes, probe commands, and orphans that were inherited."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            if pid in self._commands:
                client, request, _ = self._commands.pop(pid)
                client.send({"id": request, "value": code})
            elif pid in self._by_pid:
                record = self._records[self._by_pid[pid]]
                killed = code < 0
                self._end(record, 128 - code if killed else code, "Error" if code else "Completed")
        if self._stopping and all(each["ended"] for each in self._records.values()):
            self._done = True

    def _watch_adopted(self) -> None:
        """Processes of an earlier keeper are not its children: their end is seen, their exit code is lost."""
        for pid, process in list(self._by_pid.items()):
            record = self._records[process]
            if not record["ended"] and not _is_alive(pid, record["ticks"]):
                self._end(record, 255, "ExitCodeLost")

    def _end(self, record: Record, code: int, reason: str, message: str = "") -> None:
        """Record an end. Everything else that the process started goes with it, as in a container."""
        self._by_pid.pop(record["pid"], None)
        _kill_marked(record["id"])
        record |= {"ended": _now(), "exit_code": code, "reason": reason, "message": message}
        record["since_s"] = time.monotonic()
        self._write(record)
        self._notify(record)

    def _expire(self) -> None:
        now_s = time.monotonic()
        for record in self._records.values():
            if record["ended"]:
                continue
            kill_at_s, keep_until_s = record["kill_at_s"], record["keep_until_s"]
            if (kill_at_s is not None and now_s >= kill_at_s) or (keep_until_s is not None and now_s >= keep_until_s):
                _signal_group(record["pid"], signal.SIGKILL)
                _kill_marked(record["id"])
        for pid, (_, _, deadline_s) in self._commands.items():
            if now_s >= deadline_s:
                _signal_group(pid, signal.SIGKILL)

    def _timeout_s(self) -> float:
        """How long to sleep: to the next deadline, and a second at the most while anything adopted runs."""
        now_s, next_s = time.monotonic(), 60.0
        for record in self._records.values():
            if not record["ended"]:
                next_s = min(next_s, 1.0)
                for name in ("kill_at_s", "keep_until_s"):
                    if record[name] is not None:
                        next_s = min(next_s, record[name] - now_s)
        for _, _, deadline_s in self._commands.values():
            next_s = min(next_s, deadline_s - now_s)
        return max(0.01, next_s)

    def _notify(self, record: Record) -> None:
        for client in self._clients:
            client.send({"event": record["id"], "pod_uid": record["identity"][0]})

    # -- records -----------------------------------------------------------------------------------

    def _path(self, record: Record) -> Path:
        return self._folder / "processes" / f"{record['id']}.json"

    def _write(self, record: Record) -> None:
        path = self._path(record)
        partial = path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps(record).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)


class _Client:
    """One connection. Lines in, lines out; a client that does not read is cut off."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def lines(self) -> list[bytes] | None:
        """Whole lines that have arrived; None if the client is gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data or len(self._received) > LINE_BYTES_MAX:
            return None
        *whole, self._received = (self._received + data).split(b"\n")
        return whole

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.connection.settimeout(5.0)
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass
        finally:
            self.connection.settimeout(0)


# -- processes ---------------------------------------------------------------------------------------


def _spawn(argv: list[str], env: dict[str, str], cwd: str, log: str) -> int:
    """Start a program as the leader of a session of its own, with its output appended to a file."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    program = argv[0] if "/" in argv[0] else _found(argv[0], env.get("PATH", os.defpath))
    report, failure = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir(cwd or "/")
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            os.execve(program, argv, env)
        except OSError as error:
            os.write(failure, str(error.errno).encode())
        os._exit(127)
    os.close(failure)
    os.close(output)
    failed = os.read(report, 16)
    os.close(report)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)), program)
    return pid


def _found(name: str, path: str) -> str:
    for folder in path.split(os.pathsep):
        candidate = Path(folder, name)
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_marked(process: str) -> None:
    """Kill whatever a process started, wherever it went: children that left its group keep its environment."""
    for pid, found in _marked():
        if found in (process, f"{process}!"):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _marked() -> Iterator[tuple[int, str]]:
    """Processes of any keeper, by the marker in their environment."""
    wanted = f"{MARKER}=".encode()
    for name in _pids():
        try:
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        for part in environment.split(b"\0"):
            if part.startswith(wanted):
                yield int(name), part[len(wanted) :].decode(errors="replace")


def _pids() -> list[str]:
    return [each.name for each in Path("/proc").iterdir() if each.name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the state on; None if there is no such process."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _start_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else 0


def _is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process runs: the pid may have been given to another one meanwhile."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX" and (not ticks or int(fields[19]) == ticks)


def _process_table() -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Parents, and ticks and pages, of every process on the machine."""
    parents, used = {}, {}
    for name in _pids():
        if (fields := _stat(int(name))) is not None:
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(int(each) for each in fields[11:15]), int(fields[21])
    return parents, used


def _now() -> str:
    return f"{time.time():.6f}"


def main(folder: Path) -> int:
    if os.fork():
        return 0  # the keeper is not a child of the agent, which need not wait for it
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another keeper serves this folder
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    keeper = ProcessKeeper(folder)
    keeper.recover()
    keeper.serve(folder / "keeper.sock")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
