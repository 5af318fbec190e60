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
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from kedge.agent.process import cgroups, mounts, proc_table
    from kedge.agent.process.commands import KeeperCommands
    from kedge.agent.process.keeper_bounds import CLIENTS_MAX
    from kedge.agent.process.keeper_client import NO_OPERATION, KeeperClient, clock_s
    from kedge.agent.process.log_files import BYTES_MAX, POLL_S, LogFile, read_message
    from kedge.agent.process.record_files import FIELDS, Record, RecordFiles, listed, log, port_conflict
else:  # run as a program, without the package
    sys.path.insert(0, str(Path(__file__).parent))
    import cgroups
    import mounts
    import proc_table
    from commands import KeeperCommands
    from keeper_bounds import CLIENTS_MAX
    from keeper_client import NO_OPERATION, KeeperClient, clock_s
    from log_files import BYTES_MAX, POLL_S, LogFile, read_message
    from record_files import FIELDS, Record, RecordFiles, listed, log, port_conflict

ADOPTED_POLL_S = 1.0
KILL_POLL_S = 0.05
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_REFUSED = (OSError, LookupError, TypeError, ValueError, AttributeError)
_REPLIED_AT_THE_END = ("run", "wait_command")
"""Requests about a command: the reply is its exit code."""


class _Exit(NamedTuple):
    """The leader of a record has ended; processes that it started may still run."""

    code: int
    reason: str
    message: str
    session: bool
    """Whether the session of the leader is evidence still: its pid was not free for another one since."""


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
        self._files = RecordFiles(folder)
        self._logs: dict[str, LogFile] = {}
        """Logs of processes that have not ended."""
        self._looked_s = 0.0
        self._commands = KeeperCommands()
        self._selector = selectors.DefaultSelector()
        self._clients: set[KeeperClient] = set()
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        digest = zlib.crc32(str(folder).encode())
        self._cgroups = cgroups.CgroupTree(f"kedge-{digest:08x}")
        self._mounts = mounts.are_possible()
        self._stopping = False
        self._done = False

    # -- start and recovery ------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the records of an earlier keeper and find out which of their processes still run."""
        self._files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(self._files.folder.glob("*.json")):
            try:
                record = json.loads(path.read_bytes())
                self._recover(record)
            except _REFUSED as error:
                log(f"{path} cannot be read: its processes are killed, and it is set aside: {error!r}")
                self._records.pop(path.stem, None)
                self._sweep(self._marker(path.stem), 0, 0, "", session=False)
                path.replace(path.with_suffix(".unreadable"))
        self._settle()

    def _recover(self, record: Record) -> None:
        ended, pid, ticks = record["ended"], record["pid"], record["ticks"]
        if any(name not in record for name in (*FIELDS, "log", "kill_at_s", "keep_until_s")):
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
            self._files.save_again(self._records)
            self._look_at_logs()
        self._cgroups.close()
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
                    if request["op"] not in _REPLIED_AT_THE_END:
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
                return self._stop(request["process"], float(request["grace_s"]), request.get("cause", ""))
            case "resize":
                return self._resize(request["process"], request["limits"], request["resources"])
            case "keep":
                return self._keep(request["process"], float(request["until_s"]))
            case "list":
                return [listed(each) for each in self._records.values()]
            case "forget":
                return self._forget(request["process"])
            case "run":
                return self._commands.wait(self._run(request), client, request["id"])
            case "exec":
                return self._exec(request)
            case "wait_command":
                return self._commands.wait(request["command"], client, request["id"])
            case "kill_command":
                return self._commands.kill(request["command"])
            case "abilities":
                return {**self._cgroups.abilities, "mounts": self._mounts}
            case "consumption":
                groups = {process: self._records[process].get("cgroups", []) for process in self._by_pid.values()}
                return proc_table.consumption_of(self._by_pid, groups)
            case "shutdown":
                return self._shutdown(float(request["grace_s"]))
            case other:
                raise ValueError(f"{NO_OPERATION} {other}")

    def _start(self, asked: Record, keep_until_s: float | None) -> bool:
        """Start a process, unless one was ever started for this record."""
        if asked["id"] in self._records:
            return False
        if self._stopping:
            raise ValueError("the node shuts down: nothing is started any more")
        if conflict := port_conflict(self._records.values(), asked):
            raise ValueError(conflict)
        if keep_until_s is not None and clock_s() >= keep_until_s:
            raise ValueError("the time that the process may be kept is over: start it after the next heartbeat")
        record: Record = asked | {
            "pid": 0, "ticks": 0, "boot": self._boot, "ended": "", "exit_code": 0, "reason": "", "message": "",
            "started": _now(), "since_s": time.monotonic(), "kill_at_s": None, "keep_until_s": keep_until_s,
        }  # fmt: skip

        def save(pid: int) -> None:
            entry = proc_table.read_entry(pid)
            record["pid"], record["ticks"] = pid, entry.start_ticks if entry is not None else 0
            self._files.write(record)
            self._records[record["id"]] = record

        environment = {**record["env"], proc_table.MARKER: self._marker(record["id"])}
        try:
            stdio = proc_table.Stdio(os.devnull, record["log"], record["log"])
            confinement = self._confinement(record)
            pid = proc_table.spawn(record["argv"], environment, record["cwd"], stdio, save, confinement)
            self._by_pid[pid] = record["id"]
        except proc_table.ExecFailed as error:
            code = 127 if error.errno == errno.ENOENT else 126
            self._end(record, _Exit(code, "StartError", str(error), session=False))
            return True
        self._notify(record)
        return True

    def _confinement(self, record: Record) -> proc_table.Confinement:
        """Make the control groups of a process, and choose its mounts where the machine allows them."""
        limits = cgroups.GroupLimits(*record.get("limits", ()))
        record["cgroups"] = self._cgroups.make(record["id"], limits)
        binds = tuple(tuple(each) for each in record.get("mounts", ())) if self._mounts else ()
        scratch = self._folder / "root"
        scratch.mkdir(exist_ok=True, mode=0o700)
        return proc_table.Confinement(tuple(record["cgroups"]), binds, str(scratch))

    def _stop(self, process: str, grace_s: float, cause: str = "") -> bool:
        record = self._records.get(process)
        if record is None or record["ended"]:
            return False
        deadline_s = clock_s() + grace_s
        if record["kill_at_s"] is None:
            self._signal(record, signal.SIGTERM)
        if record["kill_at_s"] is None or deadline_s < record["kill_at_s"]:
            record["kill_at_s"], record["cause"] = deadline_s, record.get("cause") or cause
            self._files.save(record)
        return True

    def _resize(self, process: str, limits: list[int | None], resources: dict[str, Any]) -> bool:
        record = self._records.get(process)
        if record is None or record["ended"]:
            return False
        self._cgroups.resize(process, cgroups.GroupLimits(*limits))
        record |= {"limits": limits, "resources": resources}  # repeated if this keeper is killed before it is saved
        self._files.save(record)
        return True

    def _keep(self, process: str, until_s: float) -> bool:
        """Move the end of a process. After its time it is killed even if the keeper itself was paused meanwhile."""
        record = self._records.get(process)
        if record is None or record["ended"] or record["keep_until_s"] is None or clock_s() >= record["keep_until_s"]:
            return False
        record["keep_until_s"] = until_s
        self._files.save(record)
        return True

    def _forget(self, process: str) -> bool:
        record = self._records.get(process)
        if record is None or not record["ended"]:
            return False
        self._files.remove(process)
        del self._records[process]
        return True

    def _run(self, request: dict[str, Any]) -> int:
        """Run a command beside a process. Returns its number."""
        record = self._records[request["process"]]
        if record["ended"] or self._stopping:
            raise ValueError(f"{record['id']} does not run")
        return self._commands.start(record, self._marker(record["id"]), request).number

    def _exec(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a command with streams of its own. A program that cannot run is a result, not an error."""
        try:
            return {"command": self._run(request)}
        except proc_table.ExecFailed as error:
            return {"failed": error.errno, "message": str(error)}

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
            if pid in self._commands.running:
                command = self._commands.ended(pid, code)
                if clock_s() >= command.deadline_s:
                    self._sweep(command.marker, pid, 0, "", session=True)
            elif pid in self._by_pid:
                process = self._by_pid.pop(pid)
                self._exits[process] = self._exit_of(self._records[process], 128 - code if code < 0 else code)
        if self._stopping and all(each["ended"] for each in self._records.values()):
            self._done = not children
            if children:
                proc_table.kill_all(proc_table.descendants(proc_table.read_table(), [os.getpid()]) - {os.getpid()})

    def _exit_of(self, record: Record, code: int) -> _Exit:
        if code and cgroups.was_out_of_memory(record.get("cgroups", [])):
            return _Exit(code, "OOMKilled", "", session=True)
        return _Exit(code, "Error" if code else "Completed", "", session=True)

    def _watch_adopted(self) -> None:
        """Processes of an earlier keeper are not its children: their end is seen, their exit code is lost."""
        for pid in list(self._adopted):
            if not proc_table.is_alive(pid, self._records[self._by_pid[pid]]["ticks"]):
                self._adopted.discard(pid)
                process = self._by_pid.pop(pid)
                if cgroups.was_out_of_memory(self._records[process].get("cgroups", [])):
                    self._exits[process] = _Exit(137, "OOMKilled", "", session=True)
                else:
                    self._exits[process] = _Exit(255, "ExitCodeLost", "", session=True)

    def _settle(self) -> None:
        """Record the end of each process whose leader has exited, once nothing that it started runs."""
        for process, found in list(self._exits.items()):
            record = self._records[process]
            leader = record["pid"], record["ticks"], record["log"]
            killed = cgroups.kill(record.get("cgroups", []))
            if not self._sweep(self._marker(process), *leader, session=found.session) and not killed:
                del self._exits[process]
                self._end(record, found)

    def _sweep(self, marker: str, leader: int, ticks: int, output: str, *, session: bool) -> bool:
        """Kill everything that an ended process or command started, as in a container. Returns whether any ran.

        The marker finds processes that left the session; the session and the log that they write to find those that
        cleared their environment; the parents find all below them. An orphan without any evidence ends with the first
        process that ends.
        """
        table = proc_table.read_table()
        table.pop(os.getpid(), None)
        holder = table.get(leader)
        session = session and (holder is None or holder.start_ticks == ticks) and leader not in self._by_pid
        has_log = output.startswith(f"{self._folder}/")  # another file, such as /dev/null, is shared and proves nothing
        roots = []
        for entry in table.values():
            found = proc_table.read_marker(entry.pid)
            outputs = () if found else proc_table.read_outputs(entry.pid)
            is_own = found == marker or found.startswith(f"{marker}!") or (has_log and output in outputs)
            is_stray = entry.parent == os.getpid() and not found and not self._is_held(entry, outputs)
            if is_own or is_stray or (session and entry.session == leader):
                roots.append(entry.pid)
        held = {os.getpid(), *self._by_pid}
        running = [pid for pid in proc_table.descendants(table, roots) - held if table[pid].runs]
        proc_table.kill_all(running)
        return bool(running)

    def _is_held(self, entry: proc_table.ProcEntry, outputs: tuple[str, ...]) -> bool:
        """Whether a child of the keeper belongs to a process or command that runs."""
        if any(each in self._by_pid or each in self._commands.running for each in (entry.pid, entry.session)):
            return True
        return any(self._records[process]["log"] in outputs for process in self._by_pid.values())

    def _end(self, record: Record, found: _Exit) -> None:
        message = found.message or read_message(record, failed=found.code != 0)
        record |= {"ended": _now(), "exit_code": found.code, "reason": found.reason, "message": message}
        cgroups.remove(record.get("cgroups", []))
        record["since_s"] = time.monotonic()
        record |= {"env": {}, "argv": []}  # only a process that runs needs them
        self._files.save(record)
        self._log_of(record).end()
        self._logs.pop(record["id"], None)
        self._notify(record)

    def _log_of(self, record: Record) -> LogFile:
        found = self._logs.get(record["id"])
        if found is None:
            found = self._logs[record["id"]] = LogFile(Path(record["log"]), record.get("log_bytes_max", BYTES_MAX))
        return found

    def _look_at_logs(self) -> None:
        now_s = clock_s()
        if self._by_pid and now_s >= self._looked_s + POLL_S:
            self._looked_s = now_s
            for process in self._by_pid.values():
                self._log_of(self._records[process]).look()

    def _expire(self) -> None:
        now_s = clock_s()
        for process in self._by_pid.values():
            record = self._records[process]
            if any(record[name] is not None and now_s >= record[name] for name in ("kill_at_s", "keep_until_s")):
                self._signal(record, signal.SIGKILL)
        self._commands.expire(now_s, stopping=self._stopping)
        self._watch_clients(now_s)

    def _signal(self, record: Record, number: int) -> None:
        """Signal the process group. A child's pid is not reused before it is reaped; an adopted one's may be."""
        pid = record["pid"]
        if pid in self._by_pid and (pid not in self._adopted or proc_table.is_alive(pid, record["ticks"])):
            proc_table.signal_group(pid, number)

    def _timeout_s(self) -> float:
        """How long to sleep: to the next deadline at the most."""
        now_s = clock_s()
        polls = self._adopted or self._files.unsaved or any(client.unsent for client in self._clients)
        next_s = ADOPTED_POLL_S if polls else 60.0
        deadlines = [each.deadline_s for each in self._commands.running.values()]
        if self._by_pid:
            deadlines.append(self._looked_s + POLL_S)
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

    def _marker(self, process: str) -> str:
        return f"{self._folder}/{process}"


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
