"""The state that all parts of one run share: loop, choices, trace, hosts, faults, network, and the violation found.

`simulation.Simulation` is its facade for programs. Each part takes a `SimWorld` and reaches other parts through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from kedge.errors import check
from kedge.kept import Section
from kedge.logs import DECISION
from kedge.sim.kernel.bounds import RunBounds, RunGuard
from kedge.sim.kernel.calls import Remote
from kedge.sim.kernel.choices import Choices, Mode, Tape
from kedge.sim.kernel.connections import SimConnections
from kedge.sim.kernel.delivery_orders import Deliveries, DeliveryOrders, OrderedLoop
from kedge.sim.kernel.faults import FaultPlan, Faults
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.lineage import LINEAGE, Lineage
from kedge.sim.kernel.loop import SimLoop
from kedge.sim.kernel.messages import send_message
from kedge.sim.kernel.network import Network
from kedge.sim.kernel.policies import SchedulePolicy, begin_schedule
from kedge.sim.kernel.run_coverage import RunCoverage
from kedge.sim.kernel.strands import STRAND, HostProcess
from kedge.sim.kernel.trace import Event, Trace, new_event
from kedge.sim.kernel.violations import Violation


class SimWorld:
    """One run. Everything in it is reachable from this object and is freed with it."""

    def __init__(
        self,
        tape: Tape,
        mode: Mode,
        *,
        policy: SchedulePolicy,
        faults: FaultPlan,
        bounds: RunBounds,
        name_strands: bool = False,
        keep: bool = False,
    ) -> None:
        self.choices = Choices(tape, mode, on_diverged=self._stop)
        self.trace = Trace()
        self.hosts: dict[str, Host] = {}
        self.violation: Violation | None = None
        self.marks: dict[str, int] = {}
        self.attachments: dict[str, Any] = {}
        self.keeps = keep
        """Whether the run is to be written to a file."""
        self.section_collectors: list[Callable[[], Iterable[Section]]] = []
        """Called at the end of such a run: the sections that the program adds to its file."""
        self.listeners: list[Callable[[Event], None]] = []
        """Called with every event as it is recorded: scripted faults and predicates."""
        self.on_crash: list[Callable[[HostProcess], None]] = []
        """Called with each process that crashed."""
        self._kept: dict[int, tuple[asyncio.Task[Any], str, str]] = {}
        """By `id`, whose order is never used: nothing iterates over it. With the host of each task, and the decision
        that started it."""
        self.under_way: dict[object, None] = {}
        """Calls that are being carried out. They hold their tasks, which a loop does not. Nothing iterates over it. Not
        keyed by `id`, because each `id` call runs the audit hook."""
        self._dead: list[object] = []
        name = policy.name if mode is Mode.RECORD else tape.policy
        orders = DeliveryOrders.of_name(name)
        searched = LINEAGE if name == LINEAGE.name else orders
        chooser, self.policy_name = begin_schedule(policy, self.choices) if searched is None else (None, searched.name)
        self.faults = Faults(self, faults if searched is None else searched)
        self.network = Network(self)
        self.lineage: Lineage | None = None
        """Follows messages, in a search that cuts them."""
        self.coverage: RunCoverage | None = None
        """Collects the features of the run, in a search for new ones."""
        self.deliveries = None if orders is None else Deliveries(self, orders)
        """Messages under way, if their order is chosen. None: each has a latency, and the loop its timer."""
        self.loop = (SimLoop if self.deliveries is None else partial(OrderedLoop, self.deliveries))(
            self.trace,
            self.choices.schedule,
            chooser=chooser,
            connections=SimConnections(self),
            on_error=self._unhandled,
            on_round=RunGuard(self, bounds).check,
            host_clock=self.host_clock,
            strand_names={} if name_strands else None,
        )
        self.context = self.loop.world_context

    def _stop(self) -> None:
        self.loop.stop()

    # -- hosts

    def add_host(self, name: str) -> Host:
        check(name not in self.hosts, f"there is already a host {name}: links and faults are addressed by host name")
        host = self.hosts[name] = Host(self, name)
        return host

    def host_clock(self, name: str) -> tuple[float, float]:
        """Monotonic time of a host, and the rate of its clock."""
        host = self.hosts.get(name)
        return (self.loop.now, 1.0) if host is None else (host.monotonic(), host.clock_rate)

    def current_host(self) -> Host | None:
        return self.hosts.get(self.loop.current_strand().process.host_name)

    def remote(self, caller: Host, callee: Host, service: str, timeout_s: float | None) -> Remote:
        return Remote(self, caller, callee, service, self.network.call_timeout_s if timeout_s is None else timeout_s)

    def send(self, source: Host, target: Host, name: str, message: object) -> None:
        send_message(self, source, target, name, message)

    def park(self, process: HostProcess) -> None:
        """Keep the work of a crashed process for the rest of the run, and break its connections."""
        self._dead.append(process)
        self._dead.extend(asyncio.all_tasks(self.loop))  # also tasks that only their own future references
        for notify in self.on_crash:
            notify(process)

    # -- tasks

    def keep(self, task: asyncio.Task[Any], process: HostProcess) -> None:
        """Hold a task of a process until it ends, and report its failure if it fails."""
        self._kept[id(task)] = task, process.host_name, DECISION.get()
        task.add_done_callback(self._ended, context=self.context)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        _, host, decision = self._kept.pop(id(task))
        if not task.cancelled() and (error := task.exception()) is not None:
            where = f"on host {host}" + (f", in decision {decision}" if decision else "")
            self._unhandled({"message": f"task {task.get_name()} failed", "exception": error, "task": task}, where)

    def _unhandled(self, context: dict[str, Any], where: str = "") -> None:
        error = context.get("exception")
        message = str(context.get("message") or "something failed")
        if not where:
            where = f"on host {STRAND.get(self.loop.root).process.host_name}"
        violation = Violation.of_error("no unhandled error", message, error)
        self.violate(replace(violation, message=f"{violation.message} ({where})"))

    # -- events and violations

    def note(self, kind: str, text: str, *, host: str | None = None) -> None:
        """Record an event in the trace."""
        if host is None:
            host = STRAND.get(self.loop.root).process.host_name
        trace = self.trace
        event = new_event((len(trace.steps), self.loop.now, host, kind, text))
        trace.events.append(event)
        for listener in self.listeners:
            listener(event)

    def violate(self, violation: Violation) -> None:
        """Fail the run. Only the first violation counts; the run ends after this step."""
        if self.violation is None:
            self.violation = violation
            self.note("violation", f"{violation.invariant}: {violation.stable_message or violation.message}")
            self.loop.stop()

    def mark(self, name: str) -> None:
        self.marks[name] = self.marks.get(name, 0) + 1
        if self.coverage is not None:
            self.coverage.marked(name)

    def forget(self) -> None:
        """Drop all references, once the outcome is complete."""
        self._kept.clear()
        self._dead.clear()
        self.under_way.clear()
        self.listeners.clear()
        self.on_crash.clear()
