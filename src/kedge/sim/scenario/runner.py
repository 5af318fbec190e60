"""Runs a scenario on a simulated cluster, with every invariant on.

The components are the production ones; a weak variant is the same without one safeguard. The same file and seed give
the same run, to the last step. In a hunt the faults of a swarm strike too, and nothing is promised in time before they
have stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta

from kedge.agent.core import Machine
from kedge.api.views import NodeView
from kedge.api.wellknown import NODE_KIND, ZONE_LABEL
from kedge.errors import OperatingError
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.timeline import timeline
from kedge.sim.cluster import Commit
from kedge.sim.cluster.admission import chain_of
from kedge.sim.cluster.dump import BadDump
from kedge.sim.cluster.faults import ClusterFaults, ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.judges.endings import check_silence, expect_settled
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.registry import Rule
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, SimulationTarget, Uniform, Violation
from kedge.sim.scenario.commit_expectations import StandingExpectation
from kedge.sim.scenario.components import controller_maker, is_reference, scheduler_maker, source_of
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.kept_scenarios import ScenarioVariant, scenario_section
from kedge.sim.scenario.predicates import Predicate
from kedge.sim.scenario.recorded_draws import RecordedDraws
from kedge.sim.scenario.safeguards import find_safeguard
from kedge.sim.scenario.schema import Expectation, Scenario, ScenarioStep, find_invariant
from kedge.sim.scenario.scripted_faults import FaultScript, ScriptedCluster
from kedge.sim.scenario.steps import ScenarioState, StepFailed, namespace_of
from kedge.sim.scenario.story import StoryLine, story
from kedge.tasks import gather_ended

OPEN_S_MAX = 120.0
"""How long the nodes may take to register before the first step."""
LOOK_S = 0.05
SLICE_S = 1.0
HUNT_LAG_S = 300.0
"""How old the state may be that a component acts on in a hunt. The status of a ReplicaSet is as old as the outage of
its controller, and a Deployment counts by it: drawn crashes and lost leases keep a controller down for minutes."""
PLAIN = ScenarioVariant()
ALL_DONE = "every step was done"
"""The mark of a run in which no fault prevented a step."""


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """The result of a run."""

    scenario: Scenario
    without: str
    """The safeguard that was removed; empty for the real components."""
    target: SimulationTarget
    outcome: RunOutcome
    recording: Recording
    """The records of the cluster."""
    begin_s: float
    """When the first step began, in virtual seconds."""

    @property
    def timeline(self) -> list[tuple[str, str, str]]:
        """Time since the first step, kind and text of each line."""
        return timeline_rows(self.recording, begin_s=self.begin_s)

    def story(self, *, verbose: bool = False) -> list[StoryLine]:
        """The timeline for a reader of the scenario: without repetitions unless `verbose`, and with its names."""
        return story(self.recording, begin_s=self.begin_s, names=self.scenario.names, verbose=verbose)

    @property
    def violation(self) -> Violation | None:
        return self.outcome.violation

    @property
    def passed(self) -> bool:
        return self.violation is None


def run_scenario(
    scenario: Scenario,
    *,
    without: str = "",
    seed: int | None = None,
    on_step: Callable[[int, str], None] = lambda *_: None,
    keep: bool = False,
) -> ScenarioRun:
    """Run a scenario. `without` removes a safeguard; `on_step` is called before each step; `keep` collects its file.

    Raises:
        ScenarioError: there is no safeguard of that name.
    """
    target, runners = scenario_target(scenario, ScenarioVariant(without), on_step)
    outcome = target.run(scenario.seed if seed is None else seed, keep=keep)
    runner = runners[-1]
    return ScenarioRun(scenario, without, target, outcome, runner.cluster.record().recording(), runner.begin_s)


def find_patch(name: str) -> Callable[[], AbstractContextManager[object]]:
    """The patch that removes a safeguard; an empty name removes none.

    Raises:
        ScenarioError: there is no safeguard of that name.
    """
    if not name:
        return nullcontext
    patch = find_safeguard(name)
    if patch is None:
        raise ScenarioError(
            f"there is no safeguard {name!r} to remove: use one that the `weak` part of the scenario names"
        )
    return patch


def scenario_target(
    scenario: Scenario, variant: ScenarioVariant = PLAIN, on_step: Callable[[int, str], None] = lambda *_: None
) -> tuple[SimulationTarget, list[_ScenarioRunner]]:
    """The scenario as a target of the kernel, and the list to which each run of it adds its runner.

    Raises:
        ScenarioError: there is no safeguard of that name.
        UnknownTarget: an invariant of the variant does not exist.
    """
    runners: list[_ScenarioRunner] = []
    named = dict.fromkeys([*scenario.invariants, *variant.invariants])
    rules = [find_invariant(each) for each in named]
    own = [*named, *filter(is_reference, scenario.world.controllers)]

    async def program(sim: Simulation) -> None:
        runner = _ScenarioRunner(sim, scenario, variant, rules, on_step)
        runners[:] = [runner]
        await runner.run()

    target = SimulationTarget(
        program=program,
        policy=Uniform(),
        faults=ClusterSwarm() if variant.hunted else NO_FAULTS,
        around=find_patch(variant.without),
        marks=(ALL_DONE,) if variant.hunted and not variant.without else (),
        sources=tuple(dict.fromkeys(filter(None, map(source_of, own)))),
    )
    return target, runners


def timeline_rows(recording: Recording, *, begin_s: float) -> list[tuple[str, str, str]]:
    """Time since the first step, kind and text of each line of the timeline from then on."""
    if not recording.states:
        return []
    begin = recording.states[0].at + timedelta(seconds=begin_s)
    return [
        (
            _clock((each.at - begin).total_seconds()),
            each.kind,
            each.text + (f" ({each.count} times)" if each.count > 1 else ""),
        )
        for each in timeline(recording, since=begin)
    ]


def _clock(at_s: float) -> str:
    return f"{int(at_s // 60):02d}:{at_s % 60:06.3f}"


class _ScenarioRunner:
    """One run of one file."""

    def __init__(
        self,
        sim: Simulation,
        scenario: Scenario,
        variant: ScenarioVariant,
        rules: Sequence[Rule],
        on_step: Callable[[int, str], None],
    ) -> None:
        self._sim = sim
        self._scenario = scenario
        self._hunted = variant.hunted
        self._unjudged = tuple(each.replace(" ", "_") for each in variant.unjudged)
        self._lenient = variant.hunted or variant.lenient
        self._breaks = {each.breaks for each in scenario.weak if each.name == variant.without}
        self._rules = rules
        self.begin_s = 0.0
        """When setup was complete."""
        self.taken: dict[int, float] = {}
        """By the number of a step: when it was taken, in seconds since setup was complete."""
        self._on_step = on_step
        plan = scenario.world
        self.cluster = ScriptedCluster(
            sim,
            FaultScript(sim, self._look),
            servers=plan.servers,
            limits=plan.limits,
            admission=chain_of(plan.admission),
            hostile=variant.hunted,
        )
        self.cluster.record()
        sim.add_sections(lambda: [scenario_section(scenario, variant, self.begin_s)])
        self._skipped = 0
        """Steps that a fault prevented."""
        self._beside: list[asyncio.Task[None]] = []
        """The steps of `meanwhile`."""
        self._waiting: list[tuple[Predicate, asyncio.Event]] = []
        self._state = ScenarioState(self.cluster, User(self.cluster))

    async def run(self) -> None:
        try:
            await self._open()
        except (OperatingError, BadDump) as error:
            self._sim.violate("the world can be set up", f"{error}: correct `world.objects`, or the dump")
            return
        self.begin_s = self._sim.now_s
        self._expected = [each for each in self._scenario.expect if self._is_judged(each)]
        for each in self._expected:
            if each.within_s is None:
                self._sim.check_always(self._always(each))
        cluster_faults = asyncio.ensure_future(ClusterFaults(self.cluster).run()) if self._hunted else None
        self._beside = [asyncio.ensure_future(self._take_beside(each)) for each in self._scenario.meanwhile]
        done = await self._take_steps()
        if cluster_faults is not None:
            cluster_faults.cancel()
            with suppress(asyncio.CancelledError):
                await cluster_faults
        if done and self._scenario.settle_s:
            await self._settle()

    async def _take_steps(self) -> bool:
        """Every step and then every expectation, in order. False if the run is over."""
        for number, step in enumerate(self._scenario.steps):
            if not await self._take(number, step):
                return False
        for ended in await gather_ended(*self._beside):
            if isinstance(ended, BaseException):
                raise ended
        self._sim.sometimes(ALL_DONE, self._skipped == 0)
        if self._lenient:
            await self._heal()
        for each in self._expected:
            if each.within_s is not None and not await self._expect(each):
                return False
        return True

    # -- setup -----------------------------------------------------------------------------------------

    async def _open(self) -> None:
        plan, cluster = self._scenario.world, self.cluster
        past = [body for body in plan.objects if "generation" in body["metadata"]]
        if plan.dump is not None or past:
            await cluster.load([*(plan.dump.objects if plan.dump is not None else ()), *past])
        # The invariants judge what happens here, not the state in which another cluster was dumped.
        self._judge = Judge(
            cluster, without=self._unjudged, also=self._rules, lag_s=HUNT_LAG_S if self._hunted else LAG_S
        )
        self._sim.check_always(self._look)
        named = [namespace_of(body) or "default" for body in plan.objects]
        await cluster.set_up(*dict.fromkeys([*plan.namespaces, *named]))
        for body in plan.objects:
            if body not in past:
                await cluster.create(body, namespace=namespace_of(body))
        for node in plan.nodes:
            capacity = {"cpu": "4", "memory": "16Gi", "pods": "110", **node.resources}
            labels = {ZONE_LABEL: node.zone, **node.labels}
            cluster.add_machine(Machine(name=node.name, capacity=capacity, labels=labels, taints=node.taints))
        if plan.controllers:
            makers = [controller_maker(name) for name in plan.controllers]
            cluster.boot("manager", makers, copies=plan.managers)
        draws = RecordedDraws(plan.draws, lambda: self._sim.now_s - self.begin_s)
        for name, copies in plan.schedulers.items():
            cluster.boot(name, [scheduler_maker(name, draws)], copies=copies)
        deadline_s = self._sim.now_s + OPEN_S_MAX
        while not self._nodes_ready() and self._sim.now_s < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self._state.remember_policies()

    def _nodes_ready(self) -> bool:
        ready = 0
        for found in self.cluster.all(NODE_KIND):
            conditions = found.as_view(NodeView).status.conditions
            ready += any(each.type == "Ready" and each.status == "True" for each in conditions)
        return ready == len(self.cluster.nodes)

    # -- steps and expectations ------------------------------------------------------------------------

    async def _take(self, number: int, step: ScenarioStep) -> bool:
        """Wait for the moment of a step and carry it out. False if the run is over."""
        sim = self._sim
        if step.at_s is not None:
            await asyncio.sleep(max(0.0, self.begin_s + step.at_s - sim.now_s))
        if step.when is not None and not await self._wait(step.when, step.when_within_s):
            mismatch = step.when.mismatch(self.cluster)
            return self._refuse(
                f"step {number + 1} starts in time",
                f"line {step.line}: {step.when.summary}: {mismatch} after {step.when_within_s:g}s",
            )
        await asyncio.sleep(step.after_s)
        if sim.world.violation is not None:
            return False
        self.taken[number] = sim.now_s - self.begin_s
        self._on_step(number, step.summary)
        sim.note("step", step.summary)
        if step.expectation is not None:
            return await self._take_expectation(step.expectation)
        assert step.verb is not None
        try:
            await step.verb.act(self._state, step.args)
        except (StepFailed, OperatingError) as error:
            return self._refuse(f"step {number + 1} can be done", f"line {step.line}: {step.summary}: {error}")
        return True

    async def _take_beside(self, step: ScenarioStep) -> None:
        """A step of `meanwhile`, at its time. A run that departs from the recorded one may have no use for it."""
        deadline_s = self.begin_s + (step.at_s or 0.0)
        while self._sim.now_s < deadline_s and self._sim.world.violation is None:  # noqa: ASYNC110
            await asyncio.sleep(min(SLICE_S, deadline_s - self._sim.now_s))
        if self._sim.world.violation is not None:
            return
        assert step.verb is not None
        self._sim.note("step", step.summary)
        try:
            await step.verb.act(self._state, step.args)
        except (StepFailed, OperatingError) as error:
            self._skipped += 1
            self._sim.note("skipped", f"line {step.line}: {step.summary}: {error}")

    def _is_judged(self, expectation: Expectation) -> bool:
        """Whether it counts in this run: in a hunt also the one that the missing safeguard must break."""
        return expectation.hunted or not self._lenient or expectation.name in self._breaks

    async def _take_expectation(self, expectation: Expectation) -> bool:
        """An expectation between steps. While faults of a swarm strike, nothing is promised in time."""
        if not self._is_judged(expectation):
            return True
        if expectation.within_s is None:
            self._sim.check_always(self._always(expectation))
            return True
        if not self._lenient:
            return await self._expect(expectation)
        if await self._wait(expectation.predicate, expectation.within_s):
            self._sim.note("held", expectation.name)
        return self._sim.world.violation is None

    def _refuse(self, rule: str, why: str) -> bool:
        """A step that cannot be taken fails the run. In a hunt it is left out: a fault may have prevented it."""
        if not self._lenient:
            self._sim.violate(rule, why)
        elif self._sim.world.violation is None:
            self._skipped += 1
            self._sim.note("skipped", why)
        return self._sim.world.violation is None

    async def _wait(self, predicate: Predicate, within_s: float) -> bool:
        deadline_s = self._sim.now_s + within_s
        if not predicate.mismatch(self.cluster):
            return True
        came = asyncio.Event()
        self._waiting.append((predicate, came))
        # In slices: a run that has failed must not wait on.
        while not came.is_set() and self._sim.now_s < deadline_s and self._sim.world.violation is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), min(SLICE_S, deadline_s - self._sim.now_s))
        self._waiting.remove((predicate, came))
        return came.is_set()

    def _look(self, _: object = None) -> None:
        """Called at every commit and fault, so that a predicate that held for one commit only counts too."""
        for predicate, came in self._waiting:
            if not predicate.mismatch(self.cluster):
                came.set()

    async def _expect(self, expectation: Expectation) -> bool:
        within_s = expectation.within_s or 0.0
        if self._lenient:  # the effects of faults are still to be repaired
            within_s += self._scenario.settle_s
        if await self._wait(expectation.predicate, within_s):
            self._sim.note("held", expectation.name)
            return True
        if self._sim.world.violation is None:
            mismatch = expectation.predicate.mismatch(self.cluster)
            message = (
                f"line {expectation.line}: not within {within_s:g}s: {expectation.predicate.summary}, but {mismatch}"
            )
            self._sim.violate(expectation.name, message)
        return False

    def _always(self, expectation: Expectation) -> Callable[[Commit], Iterator[tuple[str, str]]]:
        standing = StandingExpectation(expectation, begin_s=self.begin_s)

        def rule(commit: Commit) -> Iterator[tuple[str, str]]:
            if mismatch := standing.mismatch(self.cluster, self._sim.now_s):
                yield "expectation", f"{mismatch} (revision {commit.revision})"

        rule.__name__ = expectation.name
        return rule

    async def _settle(self) -> None:
        """Stop faults, restart every machine, and require convergence and then silence."""
        await self._heal()
        expect_settled(self._judge)
        within_s = self._scenario.settle_s
        if self._lenient:  # effects of faults may still be in flight
            await self._sim.converge(within_s=within_s, every_s=1.0, stays_s=LAG_S, unrest_s=LAG_S)
        else:
            await self._sim.converge(within_s=within_s, every_s=1.0, stays_s=5.0)
        if self._sim.world.violation is None:
            await check_silence(self.cluster)

    async def _heal(self) -> None:
        """Stop faults, and restart every machine and server. Safe to repeat."""
        if not self._sim.faults.active:
            return
        self._sim.heal()
        for server in self.cluster.servers:
            self.cluster.restart_server(server)
        self.cluster.power_on_machines()
        nodes = self.cluster.nodes if self._hunted else self._state.resized
        await self.cluster.restore_sizes(nodes.values())
