"""Run a program in a simulated world: `run(program, seed)` returns a `RunOutcome`, the same one every time.

    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        server.serve("counter", Counter())
        counter = client.remote(server, "counter")
        await client.run(counter.add(1))          # may raise OutcomeUnknown: it may have been carried out
        sim.heal()                                # faults end, the schedule is fair

    outcome = run(program, 7)                     # outcome.violation, outcome.tape, outcome.hash
    assert run(program, outcome.tape).hash == outcome.hash

The program itself runs on a host named `driver` that no fault touches. An exception that it raises is a violation.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from kedge.errors import check
from kedge.kept import Section
from kedge.sim.kernel.bounds import RunBounds
from kedge.sim.kernel.choices import Mode, Tape, TapeMismatch
from kedge.sim.kernel.faults import FaultPlan, Faults, Swarm
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.invariants import Liveness, Safety, name_of
from kedge.sim.kernel.lasting_faults import draw_birth_faults
from kedge.sim.kernel.network import Network
from kedge.sim.kernel.policies import SchedulePolicy, Uniform
from kedge.sim.kernel.real_io import install_audit_hook
from kedge.sim.kernel.teardown import tear_down, waiting_tasks
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.violations import Violation
from kedge.sim.kernel.world import SimWorld

_T = TypeVar("_T")

Program: TypeAlias = "Callable[[Any], Coroutine[Any, Any, Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The complete result of one run."""

    seed: int
    tape: Tape
    trace: Trace
    hash: str
    violation: Violation | None
    diverged: TapeMismatch | None
    """Set when the tape did not fit; the other fields are then meaningless."""
    marks: dict[str, int]
    """Each `sometimes` that was reached, and how often."""
    faults: tuple[Event, ...]
    virtual_s: float
    result: Any = None
    missing_choices: int = 0
    """Lenient replay: choices that the tape did not have."""
    attachments: dict[str, Any] = field(default_factory=dict)
    """Data that the program adds to a failure: initial objects, versions, policies."""
    kept: bool = False
    """Whether the program collected sections."""
    sections: tuple[Section, ...] = ()
    """Sections that the program adds to the file of the run."""
    strands: dict[int, str] = field(default_factory=dict)
    """The host and task of each strand number in the trace. Only with `name_strands`."""

    @property
    def steps(self) -> int:
        return len(self.trace.steps)

    def timeline(self) -> str:
        """The events, one per line."""
        return "\n".join(str(event) for event in self.trace.events)


class Simulation:
    """The facade of a simulated world for the program that runs in it."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.driver = world.add_host("driver")
        self.driver.takes_faults = False
        self._safety: list[tuple[str, Safety]] = []
        self._liveness: list[tuple[str, Liveness]] = []
        self._explanations: dict[str, Callable[[], str]] = {}

    @property
    def faults(self) -> Faults:
        return self.world.faults

    @property
    def network(self) -> Network:
        return self.world.network

    @property
    def seed(self) -> int:
        return self.world.choices.seed

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self.world.loop.now

    def host(self, name: str) -> Host:
        """A new host. Links, faults and the trace use its name. A fault may give it a bad clock or a slow CPU."""
        host = self.world.add_host(name)
        draw_birth_faults(self.world, host)
        return host

    # -- workload

    def choose(self, label: str, options: Sequence[_T]) -> _T:
        """Draw one of `options` from the workload stream. The simplest goes first: shrinking moves towards it."""
        return self.world.choices.workload.pick(label, options)

    def choose_int(self, label: str, low: int, high: int) -> int:
        """Draw an integer from `low` to `high`, both included. Shrinking moves towards `low`."""
        return low + self.world.choices.workload.choose(label, high - low + 1)

    # -- events, invariants, marks

    def note(self, kind: str, text: str) -> None:
        """Record an event in the trace, for scripted faults and for people."""
        self.world.note(kind, text)

    def check_always(self, *invariants: Safety) -> None:
        """Check these at every later `commit`."""
        self._safety.extend((name_of(invariant), invariant) for invariant in invariants)

    def check_eventually(self, *invariants: Liveness) -> None:
        """Wait for these in `converge`."""
        self._liveness.extend((name_of(invariant), invariant) for invariant in invariants)

    def explain(self, invariant: Liveness, describe: Callable[[], str]) -> None:
        """Describe a liveness invariant that does not hold in the report of the failure."""
        self._explanations[name_of(invariant)] = describe

    def commit(self, step: object) -> None:
        """Check the safety invariants on one change. Call it where state is committed, in the same step."""
        for name, invariant in self._safety:
            try:
                finding = next(iter(invariant(step) or ()), None)
            except Exception as error:  # noqa: BLE001
                # Raised into the program it might be handled there, and the failure would go unnoticed.
                self.world.violate(Violation.of_error(name, "the invariant itself failed", error))
                return
            if finding is not None:
                cause, message = finding
                self.world.violate(Violation(name, message, cause))
                return
        if self.world.lineage is not None:
            self.world.lineage.committed(self._liveness)

    def sometimes(self, name: str, condition: object = True) -> None:
        """Record that a rare state was reached. A hunt reports marks that no seed reached."""
        if condition:
            self.world.mark(name)

    def attach(self, name: str, value: Any) -> None:
        """Keep a JSON value with the run: initial objects, versions, flags, policies."""
        self.world.attachments[name] = value

    def add_sections(self, collect: Callable[[], Iterable[Section]]) -> None:
        """Add sections to the file of this run: `collect` is called at its end, and only if a file is written."""
        if self.world.keeps:
            self.world.section_collectors.append(collect)

    @property
    def keeps(self) -> bool:
        """Whether this run is to be written to a file. Collecting sections must not change the run."""
        return self.world.keeps

    def violate(self, invariant: str, message: str, *, cause: str = "") -> None:
        """Fail the run."""
        self.world.violate(Violation(invariant, message, cause))

    # -- phases

    def explore_orders(self) -> None:
        """Begin an exhaustive search here: from now on messages arrive in every order. Other runs ignore it.

        A program that never calls it is searched from its start.
        """
        if self.world.deliveries is not None:
            self.world.deliveries.explore()

    def heal(self) -> None:
        """End the hostile phase: no more faults, whole links, hosts up, unpaused and at speed, a fair schedule.

        Wall clocks stay wrong, because no component may depend on them.
        """
        world = self.world
        world.faults.stop()
        world.network.heal()
        if world.deliveries is not None:
            world.deliveries.stop()
        for host in list(world.hosts.values()):
            if host.paused:
                host.resume()
            if host.step_s:
                host.slow(0)
            if host.clock_rate != 1.0:
                host.skew(rate=1.0)
            if not host.up and host.restartable:
                host.restart()
        world.loop.change_policy(None)
        self.note("phase", "healed")

    async def converge(
        self, *, within_s: float, every_s: float = 0.25, stays_s: float = 0.0, unrest_s: float = 0.0
    ) -> None:
        """Wait until every liveness invariant holds, and has held for `stays_s`.

        An invariant that does not become true in time, or does not stay true, is a violation. For the first `unrest_s`
        it may change, because effects of the faults may still be in flight.
        """
        check(not self.faults.active, "liveness is promised only once faults end: call heal first")
        deadline_s, calm_s = self.now_s + within_s, self.now_s + unrest_s
        since_s: float | None = None
        while True:
            behind = next((name for name, invariant in self._liveness if not invariant()), None)
            if behind is None:
                since_s = self.now_s if since_s is None else since_s
                if self.now_s >= since_s + stays_s:
                    return
            elif since_s is not None and self.now_s >= calm_s:
                self._unmet(behind, f"came true and did not stay true for {stays_s} virtual seconds")
                return
            elif self.now_s >= deadline_s:
                self._unmet(behind, f"not within {within_s} virtual seconds after the faults stopped")
                return
            else:
                since_s = None
            await asyncio.sleep(every_s)

    def _unmet(self, name: str, message: str) -> None:
        describe = self._explanations.get(name)
        lines = describe() if describe is not None else ""
        first = lines.partition("\n")[0]
        self.world.violate(Violation(name, f"{message}: {first}" if first else message, detail=lines))


MakeSimulation = Callable[[SimWorld], Any]


def run(
    program: Program,
    tape: Tape | int = 0,
    *,
    policy: SchedulePolicy | None = None,
    faults: FaultPlan | None = None,
    bounds: RunBounds | None = None,
    lenient: bool = False,
    make_simulation: MakeSimulation = Simulation,
    name_strands: bool = False,
    keep: bool = False,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> RunOutcome:
    """Run `program` once.

    `tape` is a seed, from which every choice is drawn and recorded, or the tape of an earlier run, which is replayed:
    exactly, and the outcome has the first mismatch; or with `lenient`, by label and occurrence. `make_simulation`
    returns the argument of the program, and `around` a context that no other run shares: it may change the components.
    """
    install_audit_hook()
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("a simulation cannot run inside a running event loop: call it from plain code")
    recorded = tape if isinstance(tape, Tape) else Tape(tape)
    mode = Mode.RECORD if not isinstance(tape, Tape) else Mode.LENIENT if lenient else Mode.STRICT
    with _one_at_a_time, around(), _fixed_collections():
        world = SimWorld(
            recorded,
            mode,
            policy=policy or Uniform(),
            faults=faults or Swarm(),
            bounds=bounds or RunBounds(),
            name_strands=name_strands,
            keep=keep,
        )
        choices = world.choices
        try:
            result = _drive(world, program(make_simulation(world)))
            return RunOutcome(
                seed=choices.seed,
                tape=choices.taken(world.policy_name),
                trace=world.trace,
                hash=world.trace.hash(),
                violation=world.violation,
                diverged=choices.diverged,
                marks=dict(sorted(world.marks.items())),
                faults=tuple(world.faults.struck),
                virtual_s=world.loop.now,
                result=result,
                missing_choices=choices.missing(),
                attachments=dict(world.attachments),
                kept=keep,
                sections=tuple(section for collect in world.section_collectors for section in collect()),
                strands=dict(world.loop.strand_names or {}),
            )
        finally:
            tear_down(world)


def _drive(world: SimWorld, work: Coroutine[Any, Any, _T]) -> _T | None:
    loop = world.loop
    main = loop.spawn_on(world.hosts["driver"].process, work, "program")
    main.add_done_callback(lambda _: loop.stop(), context=world.context)
    try:
        loop.run_forever()
    except SystemExit as leaving:
        world.violate(Violation.of_error("the program ends well", "it left the interpreter", leaving))
        return None
    if main.done() and not main.cancelled():
        error = main.exception()
        if error is None:
            return main.result()
        world.violate(Violation.of_error("the program ends well", "the program failed", error))
    elif main.cancelled():
        world.violate(Violation("the program ends well", "the program was cancelled"))
    elif world.violation is None and world.choices.diverged is None:
        waiting = waiting_tasks(world)
        world.violate(
            Violation(
                "the program never deadlocks",
                f"nothing is left to happen, and {len(waiting)} tasks still wait",
                detail="\n".join(waiting),
            )
        )
    return None


_one_at_a_time = threading.Lock()
"""Runs in several threads would share the garbage collector, its hooks and asyncio's register of tasks. The GIL lets
only one thread work at a time anyway."""


@contextmanager
def _fixed_collections() -> Any:
    """Turn automatic garbage collection off: finalizers run at fixed steps or not at all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
