"""What every part of one run shares: loop, choices, trace, hosts, and the one place where a run is found to fail.

`simulation.Simulation` is the face of it for programs. Parts take a `SimWorld`; none of them reaches for another part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kedge.errors import check
from kedge.sim.kernel.choices import Choices
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.loop import SimLoop
from kedge.sim.kernel.strands import STRAND, HostProcess
from kedge.sim.kernel.trace import Event, Trace, new_event
from kedge.sim.kernel.violations import Violation

if TYPE_CHECKING:
    from kedge.sim.kernel.calls import Remote
    from kedge.sim.kernel.faults import Faults
    from kedge.sim.kernel.network import Network


class SimWorld:
    """One run. Everything in it hangs on this object and goes with it."""

    faults: Faults
    network: Network

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.trace = Trace()
        self.loop = SimLoop(self.trace, choices)
        self.context = self.loop.world_context
        self.hosts: dict[str, Host] = {}
        self.violation: Violation | None = None
        self.marks: dict[str, int] = {}
        self.attachments: dict[str, Any] = {}
        self.listeners: list[Callable[[Event], None]] = []
        """Hear every event as it is noted: scripted faults and predicates."""
        self.on_death: list[Callable[[HostProcess], None]] = []
        self._kept: dict[int, asyncio.Task[Any]] = {}
        """By address, which is never an order: nothing walks through it."""
        self.under_way: dict[object, None] = {}
        """Calls being carried out: they hold their tasks, which a loop does not. Nothing walks through it. Not by
        `id`, of which the audit hook hears each time."""
        self._dead: list[object] = []
        choices.on_diverged = self.loop.stop
        self.loop.on_error = self._unhandled

    # -- hosts

    def add_host(self, name: str) -> Host:
        check(name not in self.hosts, f"there is already a host {name}: names are what links and faults go by")
        host = self.hosts[name] = Host(self, name)
        return host

    def local_clock(self, name: str) -> tuple[float, float]:
        host = self.hosts.get(name)
        return (self.loop.now, 1.0) if host is None else (host.monotonic(), host.clock_rate)

    def current_host(self) -> Host | None:
        return self.hosts.get(self.loop.current_strand().process.host_name)

    def remote(self, caller: Host, callee: Host, service: str, timeout_s: float | None) -> Remote:
        return self.network.remote(caller, callee, service, timeout_s)

    def send(self, source: Host, target: Host, name: str, message: object) -> None:
        self.network.send(source, target, name, message)

    def bury(self, process: HostProcess) -> None:
        """Keep a dead process's work for the rest of the run, and tell those who were talking to it."""
        self._dead.append(process)
        self._dead.extend(asyncio.all_tasks(self.loop))  # a task that waits for a future nobody else holds, too
        for tell in self.on_death:
            tell(process)

    # -- tasks

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task until it ends, and report its failure if it fails."""
        self._kept[id(task)] = task
        task.add_done_callback(self._ended, context=self.context)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._kept[id(task)]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._unhandled({"message": f"task {task.get_name()} failed", "exception": error, "task": task})

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        message = str(context.get("message") or "something failed")
        self.violate(Violation.of_error("no unhandled error", message, error))

    # -- events and verdicts

    def note(self, kind: str, text: str, *, host: str | None = None) -> None:
        """Leave an event in the trace."""
        if host is None:
            host = STRAND.get(self.loop.root).process.host_name
        trace = self.trace
        event = new_event((len(trace.steps), self.loop.now, host, kind, text))
        trace.events.append(event)
        for listener in self.listeners:
            listener(event)

    def violate(self, violation: Violation) -> None:
        """The run has failed. The first violation counts; the run ends after this step."""
        if self.violation is None:
            self.violation = violation
            self.note("violation", f"{violation.invariant}: {violation.told or violation.message}")
            self.loop.stop()

    def mark(self, name: str) -> None:
        self.marks[name] = self.marks.get(name, 0) + 1

    def forget(self) -> None:
        """Let go of everything, once the outcome is sealed."""
        self._kept.clear()
        self._dead.clear()
        self.under_way.clear()
        self.listeners.clear()
        self.on_death.clear()
