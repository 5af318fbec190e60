"""The running cluster that the steps of `kedge chaos` act on: its committed state, its links, its processes.

Every lasting fault is in `faults` until it ends. `close` ends all of them, whatever happened before.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kedge.api.objects import Object
from kedge.cli.live_faults.fault_socket import EndFault, FaultClient, ListLinks, PlaceFault, ReadLimits
from kedge.cli.live_faults.links import CONTROL_PLANE, LinkFault
from kedge.cli.live_faults.own_processes import OwnProcesses
from kedge.cli.up import LOG
from kedge.client.contract import Client
from kedge.client.http import read_kubeconfig
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.records import CommitRecord, StoreState
from kedge.sim.cluster.users import ApiUser
from kedge.sim.scenario.steps import StepFailed

START_S = 60.0
"""`kedge up` that does not serve by then after a restart is reported as failed."""

LOOK_S = 0.05


@dataclass
class LiveScript:
    """The faults so far, as text."""

    struck: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Always empty: requests of components are not seen from outside."""


class LiveView:
    """The committed state, as far as it is recorded."""

    def __init__(self, start: StoreState) -> None:
        self._objects = {each.key: each for each in start.objects}
        self.script = LiveScript()

    def apply(self, commit: CommitRecord) -> None:
        for each in commit.written:
            self._objects[each.key] = each
        for key in commit.deleted:
            self._objects.pop(key, None)

    def find(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def all(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        keys = sorted(key for key in self._objects if key.kind == kind and namespace in ("", key.namespace))
        return [self._objects[key] for key in keys]


@dataclass(eq=False)
class LiveFault:
    """A fault that lasts."""

    text: str
    node: str
    end: Callable[[], Awaitable[None]]
    timer: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _PlacedFault:
    to: str
    fault: LinkFault
    number: int


class LiveState:
    """The cluster of one state folder. Made by `open`."""

    def __init__(
        self,
        state: Path,
        client: Client,
        view: LiveView,
        links: FaultClient,
        names: Sequence[str],
        on_event: Callable[[str, str], None],
    ) -> None:
        self._state = state
        self.view = view
        self.user = ApiUser(client, lambda kind, namespace: view.all(kind, namespace=namespace))
        self.processes = OwnProcesses(state)
        self.faults: list[LiveFault] = []
        self._on_event = on_event
        """Called with `fault` or `healed`, and the text."""
        self._links = links
        self._placed: list[_PlacedFault] = []
        self._command: tuple[list[str], str] | None = None
        """How to start `kedge up` again, while it is down."""
        self._started: subprocess.Popen[bytes] | None = None
        """The `kedge up` that this run started; it goes on after the run."""
        self.limits = Limits()
        """The limits of the cluster: its history is judged by them."""
        self.nodes = [name for name in names if name != CONTROL_PLANE]

    @classmethod
    async def open(cls, state: Path, client: Client, view: LiveView, on_event: Callable[[str, str], None]) -> LiveState:
        links = await FaultClient.connect(state)
        found = cls(state, client, view, links, await links.ask(ListLinks()), on_event)
        found.limits = Limits(**await links.ask(ReadLimits()))
        return found

    def node(self, name: str) -> str:
        if name not in self.nodes:
            raise StepFailed(f"there is no node {name}: kedge up runs {', '.join(self.nodes)}")
        return name

    # -- faults ------------------------------------------------------------------------------------

    def strike(self, text: str) -> None:
        self.view.script.struck.append(text)
        self._on_event("fault", text)

    def begin(self, text: str, end: Callable[[], Awaitable[None]], *, lasting_s: float, node: str = "") -> None:
        """Record a fault that was placed. It ends after `lasting_s`; 0: at the end of the run, or by a step."""
        fault = LiveFault(text, node, end)
        self.faults.append(fault)
        self.strike(text)
        if lasting_s:
            fault.timer = asyncio.ensure_future(self._end_later(fault, lasting_s))

    async def _end_later(self, fault: LiveFault, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.end(fault)

    async def end(self, fault: LiveFault) -> None:
        if fault in self.faults:
            self.faults.remove(fault)
            self._on_event("healed", f"no longer: {fault.text}")
            await fault.end()

    async def place(self, to: str, fault: LinkFault) -> Callable[[], Awaitable[None]]:
        """Place a fault on links. Returns how to end it."""
        placed = _PlacedFault(to, fault, await self._links.ask(PlaceFault(to, fault)))
        self._placed.append(placed)

        async def end() -> None:
            if placed in self._placed:
                self._placed.remove(placed)
                with suppress(Unavailable):  # it ended with the process
                    await self._links.ask(EndFault(placed.number))

        return end

    @property
    def links(self) -> FaultClient:
        return self._links

    # -- the process of kedge up -------------------------------------------------------------------

    async def restart_up(self, down_s: float) -> None:
        """SIGKILL `kedge up`, which has every component, and start it again in the background."""
        pid = self.processes.up
        if not pid:
            raise StepFailed("kedge up does not run: it ended before this step")
        self._command = self._command_of(pid)
        entry = self.processes.up_entry()
        self.strike(f"kedge up (process {pid}) is killed")
        self.processes.kill([entry] if entry is not None else [])
        self._links.close()
        while self.processes.up == pid:  # the next one gets the lock only then  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(down_s)
        await self._start_up()

    def _command_of(self, pid: int) -> tuple[list[str], str]:
        """The options that it was started with, at the address where it listens."""
        words = Path("/proc", str(pid), "cmdline").read_bytes().decode().split("\0")[:-1]
        options = words[words.index("up") + 1 :] if "up" in words else []
        if "up" not in words or "--demo" in options:
            raise StepFailed("only a cluster that `kedge up` started can be restarted, and a demo cannot")
        listen = read_kubeconfig(self._state / "admin.kubeconfig").url.partition("://")[2]
        command = [sys.executable, "-m", "kedge", "up", *options, "--quiet", "--listen", listen]
        return command, str(Path("/proc", str(pid), "cwd").readlink())

    async def _start_up(self) -> None:
        if self._command is None:
            return
        self._started = _start(*self._command, self._state / LOG)
        self._command = None
        try:
            async with asyncio.timeout(START_S):
                while True:
                    # 1. The killed process releases its lock. 2. Its socket still listens. 3. It closes the socket: a
                    # connection made at 2 is reset. So the new process must hold the lock first.
                    with suppress(Unavailable):
                        if self.processes.up:
                            self._links = await FaultClient.connect(self._state)
                            break
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            raise Unavailable(f"kedge up did not serve in {START_S:.0f} s: see {self._state / LOG}") from error
        for placed in self._placed:  # the others go on as before
            placed.number = await self._links.ask(PlaceFault(placed.to, placed.fault))
        self._on_event("healed", "kedge up serves again")

    # -- the end -----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """End every fault."""
        for fault in list(self.faults):
            if fault.timer is not None:
                fault.timer.cancel()
            await self.end(fault)

    async def close(self) -> None:
        """Leave the cluster as it was found: whole links, no process stopped, `kedge up` running."""
        for fault in self.faults:
            if fault.timer is not None:
                fault.timer.cancel()
        self.processes.close()  # first: it needs no other process
        self._links.close()  # ends every fault of a link
        await self._start_up()
        self._links.close()


def _start(command: Sequence[str], folder: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
