"""Run a program in a simulated world: `run(program, seed)` gives an `RunOutcome`, and the same one every time.

    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        server.serve("counter", Counter())
        counter = client.remote(server, "counter")
        await client.run(counter.add(1))          # may raise OutcomeUnknown: it may have been carried out
        sim.heal()                                # no more faults, a fair schedule

    outcome = run(program, 7)                     # outcome.violation, outcome.tape, outcome.hash
    assert run(program, outcome.tape).hash == outcome.hash

The program itself runs on a host named `driver` that no fault touches. What it raises is a violation.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from kedge.errors import check
from kedge.kept import Section
from kedge.sim.kernel.bounds import RunBounds
from kedge.sim.kernel.choices import Mode, Tape, TapeMismatch
from kedge.sim.kernel.faults import FaultPlan, Faults, Swarm
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.invariants import Liveness, Safety, words_of
from kedge.sim.kernel.lasting_faults import strike_at_birth
from kedge.sim.kernel.network import Network
from kedge.sim.kernel.policies import SchedulePolicy, Uniform
from kedge.sim.kernel.real_io import watch_for_the_outside_world
from kedge.sim.kernel.teardown import tear_down, waiting_tasks
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.violations import Violation
from kedge.sim.kernel.world import SimWorld

_T = TypeVar("_T")

Program: TypeAlias = "Callable[[Any], Coroutine[Any, Any, Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """All there is to know of one run."""

    seed: int
    tape: Tape
    trace: Trace
    hash: str
    violation: Violation | None
    diverged: TapeMismatch | None
    """Set when a tape did not fit; the rest then means nothing."""
    marks: dict[str, int]
    """Each "sometimes" that was reached, and how often."""
    faults: tuple[Event, ...]
    virtual_s: float
    result: Any = None
    missing_choices: int = 0
    """Lenient replay: choices that the tape did not have."""
    attachments: dict[str, Any] = field(default_factory=dict)
    """What the program wants kept with a failure: initial objects, versions, policies."""
    kept: bool = False
    """Whether the program was told to collect sections."""
    sections: tuple[Section, ...] = ()
    """What the program adds to the file of the run."""
    strands: dict[int, str] = field(default_factory=dict)
    """Who each strand number of the trace was. Only when asked for."""

    @property
    def steps(self) -> int:
        return len(self.trace.steps)

    def timeline(self) -> str:
        """What happened, a line an event."""
        return "\n".join(str(event) for event in self.trace.events)


class Simulation:
    """What a program sees of the world it runs in."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.driver = world.add_host("driver")
        self.driver.ordinary = False
        self._safety: list[tuple[str, Safety]] = []
        self._liveness: list[tuple[str, Liveness]] = []

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
        """A new host. Names are what links, faults and the trace go by. A fault may be a bad clock or a slow CPU."""
        host = self.world.add_host(name)
        strike_at_birth(self.world, host)
        return host

    # -- workload

    def choose(self, label: str, options: Sequence[_T]) -> _T:
        """One of `options`, from the workload stream. The plainest goes first: shrinking moves towards it."""
        return self.world.choices.workload.pick(label, options)

    def choose_int(self, label: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included. Shrinking moves towards `low`."""
        return low + self.world.choices.workload.choose(label, high - low + 1)

    # -- events, invariants, marks

    def note(self, kind: str, text: str) -> None:
        """Leave an event in the trace, where scripted faults and people can see it."""
        self.world.note(kind, text)

    def check_always(self, *invariants: Safety) -> None:
        """Hold every later `commit` to these."""
        self._safety.extend((words_of(invariant), invariant) for invariant in invariants)

    def check_eventually(self, *invariants: Liveness) -> None:
        """Demand these of `converge`."""
        self._liveness.extend((words_of(invariant), invariant) for invariant in invariants)

    def commit(self, step: object) -> None:
        """Tell the safety invariants of one change. Call it where state is committed, in the same step."""
        for words, invariant in self._safety:
            try:
                finding = next(iter(invariant(step) or ()), None)
            except Exception as error:  # noqa: BLE001
                # Raised into the program it might be handled there, and the promise would be broken in silence.
                self.world.violate(Violation.of_error(words, "the invariant itself failed", error))
                return
            if finding is not None:
                cause, message = finding
                self.world.violate(Violation(words, message, cause))
                return

    def sometimes(self, name: str, condition: object = True) -> None:
        """Mark a rare state as reached. A hunt reports marks that no seed reached."""
        if condition:
            self.world.mark(name)

    def attach(self, name: str, value: Any) -> None:
        """Keep something JSON can hold with the run: initial objects, versions, flags, policies."""
        self.world.attachments[name] = value

    def add_sections(self, collect: Callable[[], Iterable[Section]]) -> None:
        """Add sections to the file of this run: `collect` is called at its end, and only if a file is written."""
        if self.world.keeps:
            self.world.section_collectors.append(collect)

    @property
    def keeps(self) -> bool:
        """Whether this run is to be written to a file. What it collects must not change the run."""
        return self.world.keeps

    def violate(self, invariant: str, message: str, *, cause: str = "") -> None:
        """Fail the run."""
        self.world.violate(Violation(invariant, message, cause))

    # -- phases

    def heal(self) -> None:
        """End the hostile phase: no more faults, whole links, hosts up, unpaused and at speed, a fair schedule.

        Wall clocks stay wrong: no component may depend on them.
        """
        world = self.world
        world.faults.stop()
        world.network.heal()
        for host in list(world.hosts.values()):
            if host.paused:
                host.resume()
            if host.step_s:
                host.slow(0)
            if host.clock_rate != 1.0:
                host.skew(rate=1.0)
            if not host.up and host.mortal:
                host.restart()
        world.loop.change_policy(None)
        self.note("phase", "healed")

    async def converge(
        self, *, within_s: float, every_s: float = 0.25, stays_s: float = 0.0, unrest_s: float = 0.0
    ) -> None:
        """Wait until every liveness invariant holds, and then for `stays_s` that they go on holding.

        One that does not come true in time, or does not stay true, is a violation. For `unrest_s` it may come and go:
        what the faults began may still be under way.
        """
        check(not self.faults.active, "liveness is promised only once faults end: call heal first")
        deadline_s, calm_s = self.now_s + within_s, self.now_s + unrest_s
        since_s: float | None = None
        while True:
            behind = next((words for words, invariant in self._liveness if not invariant()), None)
            if behind is None:
                since_s = self.now_s if since_s is None else since_s
                if self.now_s >= since_s + stays_s:
                    return
            elif since_s is not None and self.now_s >= calm_s:
                self.violate(behind, f"came true and did not stay true for {stays_s} virtual seconds")
                return
            elif self.now_s >= deadline_s:
                self.violate(behind, f"not within {within_s} virtual seconds after the faults stopped")
                return
            else:
                since_s = None
            await asyncio.sleep(every_s)


MakeSimulation = Callable[[SimWorld], Any]


def run(
    program: Program,
    tape: Tape | int = 0,
    *,
    policy: SchedulePolicy | None = None,
    faults: FaultPlan | None = None,
    bounds: RunBounds | None = None,
    lenient: bool = False,
    face: MakeSimulation = Simulation,
    name_strands: bool = False,
    keep: bool = False,
) -> RunOutcome:
    """Run `program` once.

    `tape` is a seed, which draws every choice and records it, or the tape of a former run, which is followed: exactly,
    and the outcome says where it went out of step; or leniently, by label and occurrence. `face` makes what the
    program is given.
    """
    watch_for_the_outside_world()
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("a simulation cannot run inside a running event loop: call it from plain code")
    recorded = tape if isinstance(tape, Tape) else Tape(tape)
    mode = Mode.RECORD if not isinstance(tape, Tape) else Mode.LENIENT if lenient else Mode.STRICT
    with _one_at_a_time, _fixed_collections():
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
            result = _drive(world, program(face(world)))
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
"""Runs in several threads would share the collector, its hooks and asyncio's register of tasks; the interpreter's own
lock lets only one of them work at a time anyway."""


@contextmanager
def _fixed_collections() -> Any:
    """No automatic garbage collection: finalizers run at fixed steps or not at all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
