"""The keeper of one node's processes: a small program that starts them, waits for them and records how they ended.

It runs alone, with the standard library only (`python -I -S keeper.py FOLDER`), and serves lines of JSON on a Unix
socket. Processes are its children; as a subreaper it also inherits every orphan they leave. A program is executed only
after its record is on disk, so a keeper that is killed anywhere leaves evidence: its successor finds running processes
by pid and start time, what they started by parent, session and a marker in the environment, and starts nothing twice.
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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from kedge.agent.process import proc_table
    from kedge.agent.process.keeper_client import KeeperClient, clock_s
else:  # run as a program, without the package
    sys.path.insert(0, str(Path(__file__).parent))
    import proc_table
    from keeper_client import KeeperClient, clock_s

CLIENTS_MAX = 64
ADOPTED_POLL_S = 1.0
KILL_POLL_S = 0.05
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_REFUSED = (OSError, LookupError, TypeError, ValueError, AttributeError)
_FIELDS = (
    "id", "identity", "namespace", "pod", "address", "ports", "pid",
    "started", "ended", "exit_code", "reason", "since_s",
)  # fmt: skip
"""The part of a record that is listed: the rest may be large, or secret."""

Record = dict[str, Any]


class _Exit(NamedTuple):
    """The leader of a record has ended; processes that it started may still run."""

    code: int
    reason: str
    message: str
    session: bool
    """Whether the session of the leader is evidence still: its pid was not free for another one since."""


class _Command(NamedTuple):
    """A probe command that runs."""

    client: KeeperClient
    request: int
    marker: str
    deadline_s: float


class ProcessKeeper:
    """Holds the processes of one node until `shutdown`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, Record] = {}
        self._by_pid: dict[int, str] = {}
        """Leaders that run."""
        self._adopted: set[int] = set()
        """Leaders that an earlier keeper started: not its children, so only their `/proc` entry shows their end."""
        self._exits: dict[str, _Exit] = {}
        self._unsaved: set[str] = set()
        """Records that could not be written. Written again until it succeeds."""
        self._commands: dict[int, _Command] = {}
        self._selector = selectors.DefaultSelector()
        self._clients: set[KeeperClient] = set()
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._stopping = False
        self._done = False

    # -- start and recovery ------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the records of an earlier keeper and find out which of their processes still run."""
        records = self._folder / "processes"
        records.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(records.glob("*.json")):
            try:
                record = json.loads(path.read_bytes())
                self._recover(record)
            except _REFUSED as error:
                _log(f"{path} cannot be read: its processes are killed, and it is set aside: {error!r}")
                self._records.pop(path.stem, None)
                self._sweep(self._marker(path.stem), 0, 0, "", session=False)
                path.replace(path.with_suffix(".unreadable"))
        self._settle()

    def _recover(self, record: Record) -> None:
        ended, pid, ticks = record["ended"], record["pid"], record["ticks"]
        if any(name not in record for name in (*_FIELDS, "log", "kill_at_s", "keep_until_s")):
            raise ValueError("a field is missing")
        self._records[record["id"]] = record
        if ended:
            return
        if record["boot"] != self._boot:
            self._end(record, _Exit(255, "ExitCodeLost", "the machine was restarted", session=False))
        elif proc_table.is_alive(pid, ticks):
            self._by_pid[pid] = record["id"]
            self._adopted.add(pid)
        else:
            self._exits[record["id"]] = _Exit(255, "ExitCodeLost", "", session=False)

    def serve(self, path: Path) -> None:
        """Serve requests until `shutdown`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.settimeout(0)
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        # A socket's path is at most 107 bytes; a folder may be deeper, but its descriptor has a short name.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener.bind(f"/proc/self/fd/{folder}/{partial.name}")
        os.close(folder)
        partial.chmod(0o600)
        listener.listen(16)
        partial.replace(path)  # only a socket that listens has the name
        wake, poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept(listener))
        self._selector.register(wake, selectors.EVENT_READ, lambda _: os.read(wake, 4096))
        while not self._done:
            for key, events in self._selector.select(self._timeout_s()):
                key.data(events)
            self._expire()
            self._reap()
            self._watch_adopted()
            self._settle()
            self._save_again()
        path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(0.01)  # no descriptors left: the client waits in the backlog
            return
        if len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        connection.settimeout(0)
        client = KeeperClient(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda events: self._serve(client, events))

    def _serve(self, client: KeeperClient, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            client.flush()
        if events & selectors.EVENT_READ and not client.broken:
            for line in client.lines():
                if client.broken:
                    break
                try:
                    request = json.loads(line)
                    number = request["id"]
                except _REFUSED:
                    client.broken = True  # no request: nothing after it can be trusted either
                    continue
                try:
                    value = self._answer(client, request)
                except _REFUSED as error:
                    client.send({"id": number, "error": f"{type(error).__name__}: {error}"})
                else:
                    if request["op"] != "run":  # its reply comes when it ends
                        client.send({"id": number, "value": value})

    def _watch_clients(self, now_s: float) -> None:
        """Disconnect clients that are gone, sent garbage or do not read; wait for room to send to the others."""
        for client in list(self._clients):
            if client.is_over(now_s):
                self._selector.unregister(client.connection)
                self._clients.discard(client)
                client.connection.close()
                continue
            key = self._selector.get_key(client.connection)
            if key.events != client.events:
                self._selector.modify(client.connection, client.events, key.data)

    # -- requests ----------------------------------------------------------------------------------

    def _answer(self, client: KeeperClient, request: dict[str, Any]) -> Any:
        match request["op"]:
            case "start":
                return self._start(request["record"], request["keep_until_s"])
            case "stop":
                return self._stop(request["process"], float(request["grace_s"]))
            case "keep":
                return self._keep(request["process"], float(request["until_s"]))
            case "list":
                return [{name: each[name] for name in _FIELDS} for each in self._records.values()]
            case "forget":
                return self._forget(request["process"])
            case "run":
                return self._run(client, request)
            case "consumption":
                return self._consumption()
            case "shutdown":
                return self._shutdown(float(request["grace_s"]))
            case other:
                raise ValueError(f"the keeper has no operation {other}: restart it with the version of its agent")

    def _start(self, asked: Record, keep_until_s: float | None) -> bool:
        """Start a process, unless one was ever started for this record."""
        if asked["id"] in self._records:
            return False
        if self._stopping:
            raise ValueError("the node shuts down: nothing is started any more")
        if keep_until_s is not None and clock_s() >= keep_until_s:
            raise ValueError("the time that the process may be kept is over: start it after the next heartbeat")
        record: Record = asked | {
            "pid": 0, "ticks": 0, "boot": self._boot, "ended": "", "exit_code": 0, "reason": "", "message": "",
            "started": _now(), "since_s": time.monotonic(), "kill_at_s": None, "keep_until_s": keep_until_s,
        }  # fmt: skip

        def save(pid: int) -> None:
            entry = proc_table.read_entry(pid)
            record["pid"], record["ticks"] = pid, entry.start_ticks if entry is not None else 0
            self._write(record)
            self._records[record["id"]] = record

        environment = {**record["env"], proc_table.MARKER: self._marker(record["id"])}
        try:
            self._by_pid[proc_table.spawn(record["argv"], environment, record["cwd"], record["log"], save)] = record[
                "id"
            ]
        except proc_table.ExecFailed as error:
            code = 127 if error.errno == errno.ENOENT else 126
            self._end(record, _Exit(code, "StartError", str(error), session=False))
            return True
        self._notify(record)
        return True

    def _stop(self, process: str, grace_s: float) -> bool:
        record = self._records.get(process)
        if record is None or record["ended"]:
            return False
        deadline_s = clock_s() + grace_s
        if record["kill_at_s"] is None:
            self._signal(record, signal.SIGTERM)
        if record["kill_at_s"] is None or deadline_s < record["kill_at_s"]:
            record["kill_at_s"] = deadline_s
            self._save(record)
        return True

    def _keep(self, process: str, until_s: float) -> bool:
        """Move the end of a process. After its time it is killed even if the keeper itself was paused meanwhile."""
        record = self._records.get(process)
        if record is None or record["ended"] or record["keep_until_s"] is None or clock_s() >= record["keep_until_s"]:
            return False
        record["keep_until_s"] = until_s
        self._save(record)
        return True

    def _forget(self, process: str) -> bool:
        record = self._records.get(process)
        if record is None or not record["ended"]:
            return False
        self._path(process).unlink(missing_ok=True)
        self._unsaved.discard(process)
        del self._records[process]
        return True

    def _run(self, client: KeeperClient, request: dict[str, Any]) -> None:
        """Run a command beside a process, such as a probe. The reply comes when it ends."""
        record = self._records[request["process"]]
        if record["ended"] or self._stopping:
            raise ValueError(f"{record['id']} does not run")
        marker = f"{self._marker(record['id'])}!{request['id']}"
        environment = {**record["env"], proc_table.MARKER: marker}
        deadline_s = clock_s() + float(request["timeout_s"])
        pid = proc_table.spawn(request["argv"], environment, record["cwd"], os.devnull, lambda _: None)
        self._commands[pid] = _Command(client, request["id"], marker, deadline_s)

    def _consumption(self) -> dict[str, Any]:
        table = proc_table.read_table()
        totals: dict[str, list[int]] = {}
        for pid in table:
            above, seen = pid, 0
            while above not in self._by_pid and above in table and seen < 100:
                above, seen = table[above].parent, seen + 1
            owner = self._by_pid.get(above)
            if owner is not None:
                total = totals.setdefault(owner, [0, 0])
                total[0] += table[pid].cpu_ticks
                total[1] += table[pid].pages
        return {owner: {"cpu_s": ticks / _TICKS, "bytes": pages * _PAGE} for owner, (ticks, pages) in totals.items()}

    def _shutdown(self, grace_s: float) -> bool:
        """Stop every process, then end."""
        for process in list(self._records):
            self._stop(process, grace_s)
        self._stopping = True
        return True

    # -- ends --------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Wait for every child that has ended: processes, probe commands, and orphans that were inherited."""
        children = True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                children = False
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            if pid in self._commands:
                command = self._commands.pop(pid)
                if clock_s() >= command.deadline_s:
                    self._sweep(command.marker, pid, 0, "", session=True)
                command.client.send({"id": command.request, "value": code})
            elif pid in self._by_pid:
                process = self._by_pid.pop(pid)
                reason = "Error" if code else "Completed"
                self._exits[process] = _Exit(128 - code if code < 0 else code, reason, "", session=True)
        if self._stopping and all(each["ended"] for each in self._records.values()):
            self._done = not children
            if children:
                proc_table.kill_all(proc_table.descendants(proc_table.read_table(), [os.getpid()]) - {os.getpid()})

    def _watch_adopted(self) -> None:
        """Processes of an earlier keeper are not its children: their end is seen, their exit code is lost."""
        for pid in list(self._adopted):
            if not proc_table.is_alive(pid, self._records[self._by_pid[pid]]["ticks"]):
                self._adopted.discard(pid)
                self._exits[self._by_pid.pop(pid)] = _Exit(255, "ExitCodeLost", "", session=True)

    def _settle(self) -> None:
        """Record the end of each process whose leader has exited, once nothing that it started runs."""
        for process, found in list(self._exits.items()):
            record = self._records[process]
            leader = record["pid"], record["ticks"], record["log"]
            if not self._sweep(self._marker(process), *leader, session=found.session):
                del self._exits[process]
                self._end(record, found)

    def _sweep(self, marker: str, leader: int, ticks: int, log: str, *, session: bool) -> bool:
        """Kill everything that an ended process or command started, as in a container. Returns whether any ran.

        The marker finds processes that left the session; the session and the log that they write to find those that
        cleared their environment; the parents find all below them. An orphan without any evidence ends with the first
        process that ends.
        """
        table = proc_table.read_table()
        table.pop(os.getpid(), None)
        holder = table.get(leader)
        session = session and (holder is None or holder.start_ticks == ticks) and leader not in self._by_pid
        has_log = log.startswith(f"{self._folder}/")  # another file, such as /dev/null, is shared and proves nothing
        roots = []
        for entry in table.values():
            found = proc_table.read_marker(entry.pid)
            outputs = () if found else proc_table.read_outputs(entry.pid)
            is_own = found == marker or found.startswith(f"{marker}!") or (has_log and log in outputs)
            is_stray = entry.parent == os.getpid() and not found and not self._is_held(entry, outputs)
            if is_own or is_stray or (session and entry.session == leader):
                roots.append(entry.pid)
        held = {os.getpid(), *self._by_pid}
        running = [pid for pid in proc_table.descendants(table, roots) - held if table[pid].runs]
        proc_table.kill_all(running)
        return bool(running)

    def _is_held(self, entry: proc_table.ProcEntry, outputs: tuple[str, ...]) -> bool:
        """Whether a child of the keeper belongs to a process or command that runs."""
        if any(each in self._by_pid or each in self._commands for each in (entry.pid, entry.session)):
            return True
        return any(self._records[process]["log"] in outputs for process in self._by_pid.values())

    def _end(self, record: Record, found: _Exit) -> None:
        record |= {"ended": _now(), "exit_code": found.code, "reason": found.reason, "message": found.message}
        record["since_s"] = time.monotonic()
        record |= {"env": {}, "argv": []}  # only a process that runs needs them
        self._save(record)
        self._notify(record)

    def _expire(self) -> None:
        now_s = clock_s()
        for process in self._by_pid.values():
            record = self._records[process]
            if any(record[name] is not None and now_s >= record[name] for name in ("kill_at_s", "keep_until_s")):
                self._signal(record, signal.SIGKILL)
        for pid, command in self._commands.items():
            if self._stopping or now_s >= command.deadline_s:
                proc_table.signal_group(pid, signal.SIGKILL)
        self._watch_clients(now_s)

    def _signal(self, record: Record, number: int) -> None:
        """Signal the process group. A child's pid is not reused before it is reaped; an adopted one's may be."""
        pid = record["pid"]
        if pid in self._by_pid and (pid not in self._adopted or proc_table.is_alive(pid, record["ticks"])):
            proc_table.signal_group(pid, number)

    def _timeout_s(self) -> float:
        """How long to sleep: to the next deadline at the most."""
        now_s = clock_s()
        next_s = ADOPTED_POLL_S if self._adopted or self._unsaved or any(c.unsent for c in self._clients) else 60.0
        deadlines = [each.deadline_s for each in self._commands.values()]
        for process in self._by_pid.values():
            record = self._records[process]
            deadlines += [record[name] for name in ("kill_at_s", "keep_until_s") if record[name] is not None]
        if deadlines:
            next_s = min(next_s, min(deadlines) - now_s)
        if self._exits or self._stopping or any(each.broken for each in self._clients):
            next_s = 0.0
        return max(KILL_POLL_S if next_s <= 0 else 0.001, next_s)

    def _notify(self, record: Record) -> None:
        for client in self._clients:
            client.send({"event": record["id"], "pod_uid": record["identity"][0]})

    # -- records -----------------------------------------------------------------------------------

    def _marker(self, process: str) -> str:
        return f"{self._folder}/{process}"

    def _path(self, process: str) -> Path:
        return self._folder / "processes" / f"{process}.json"

    def _save(self, record: Record) -> None:
        """Write a record; again later, if the disk is full: the keeper must go on holding its processes."""
        try:
            self._write(record)
            self._unsaved.discard(record["id"])
        except OSError as error:
            if record["id"] not in self._unsaved:
                _log(f"{self._path(record['id'])} is not written yet: {error}")
            self._unsaved.add(record["id"])

    def _save_again(self) -> None:
        for process in list(self._unsaved):
            self._save(self._records[process])

    def _write(self, record: Record) -> None:
        path = self._path(record["id"])
        partial = path.with_suffix(".partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps(record).encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _log(text: str) -> None:
    with suppress(OSError):  # the log may be on a full disk too
        print(text, file=sys.stderr, flush=True)


def _now() -> str:
    return f"{time.time():.6f}"


def main(folder: Path) -> int:
    if os.fork():
        return 0  # the keeper is not a child of the agent, which need not wait for it
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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
    sys.exit(main(Path(sys.argv[1]).absolute()))
