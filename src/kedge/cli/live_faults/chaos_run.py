"""One run of `kedge chaos`: the steps of a scenario on a running cluster, recorded, judged and kept.

The judges are the simulator's: every commit invariant on the recorded history, and no container with two processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kedge.api.conditions import is_true
from kedge.api.views import NodeView
from kedge.api.wellknown import NODE_KIND
from kedge.cli.live import logged_records
from kedge.cli.live_faults.live_state import LiveState, LiveView
from kedge.cli.live_faults.live_steps import LIVE_VERBS
from kedge.cli.live_history import HistoryRecorder
from kedge.cli.up import no_cluster
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import Env
from kedge.errors import NotFound, OperatingError, Unavailable
from kedge.kept import SUFFIX, Section, parse_section, write_kept
from kedge.observe.records import CommitRecord, CoverageRecord, Decision, OutsideEvent, RecordEncoder, StoreState
from kedge.sim.judges.recorded import judge_history
from kedge.sim.scenario.commit_expectations import StandingExpectation
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.kept_scenarios import CODEC_VERSION, SCENARIO, KeptScenario
from kedge.sim.scenario.predicates import Predicate, RefusalPredicate
from kedge.sim.scenario.schema import Expectation, Scenario, ScenarioStep
from kedge.sim.scenario.steps import StepFailed, namespace_of

LOOK_S = 0.1
STEP_S = 60.0
"""A step that the API has not confirmed by then has failed."""
INTERRUPTED_S = 5.0
"""How long the last commits may take to arrive after Ctrl-C: a person waits."""
DOUBLES = "a pod uid has one live process"


@dataclass
class ChaosResult:
    """The records of one run, and the rules that it broke."""

    start: StoreState
    commits: list[CommitRecord] = field(default_factory=list)
    outside: list[OutsideEvent] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    coverages: list[CoverageRecord] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    steps: int = 0
    faults: int = 0
    interrupted: bool = False
    """By Ctrl-C: the records end there, and nothing is known about the steps after it."""


def check_live(scenario: Scenario) -> None:
    """Check that every part of a scenario works on a running cluster.

    Raises:
        ScenarioError: a part works in simulations only; the message has its line.
    """
    world = scenario.world
    for name, given in (("dump", world.dump), ("admission", world.admission)):
        if given:
            raise ScenarioError(f"`world` has `{name}`, which only simulations load: remove it for kedge chaos")
    if scenario.invariants:
        raise ScenarioError("`invariants` are checked in simulations only: remove them for kedge chaos")
    if scenario.meanwhile:
        raise ScenarioError("`meanwhile` works in simulations only: move its steps to `steps` for kedge chaos")
    for step in scenario.steps:
        if step.verb is not None and step.verb.name not in LIVE_VERBS:
            names = ", ".join(LIVE_VERBS)
            raise ScenarioError(f"line {step.line}: `{step.verb.name}` works in simulations only: use {names}")
    expected = [*scenario.expect, *(step.expectation for step in scenario.steps if step.expectation is not None)]
    waited = [step.when for step in scenario.steps if step.when is not None]
    for predicate in (*waited, *(each.predicate for each in expected)):
        if isinstance(predicate, RefusalPredicate):
            raise ScenarioError(f"`{predicate.summary}`: refusals are known in simulations only: remove it")


async def run_chaos(scenario: Scenario, state: Path, env: Env, report: Callable[[str, str], None]) -> ChaosResult:
    """Run a scenario against the cluster of a state folder, which is left as it was found.

    A cancellation ends the run early: the faults are undone, and the records so far are judged and returned. A second
    one ends that too.

    Raises:
        Unavailable: no cluster runs there, or it did not come back.
    """
    check_live(scenario)
    async with _client(state, env) as client:
        recorder = HistoryRecorder(client, env)
        start = await recorder.start()
        view = LiveView(start)
        notes = _ChaosNotes(ChaosResult(start), env, report)
        live = await LiveState.open(state, client, view, notes.note)
        result = notes.result
        try:
            await _ChaosRunner(scenario, live, recorder, notes, env).run()
        except asyncio.CancelledError:
            result.interrupted = True
            running = asyncio.current_task()
            assert running is not None
            running.uncancel()
        finally:
            await asyncio.shield(live.close())
        result.commits = await _recorded(recorder, interrupted=result.interrupted)
        result.violations += map(str, judge_history(start, result.commits, live.limits))
        await asyncio.sleep(2 * live.limits.decision_log_sync_s)  # the logs of the processes are written by then
        logged = logged_records(state)
        result.decisions = [each for each in logged.decisions if each.began >= start.at]
        result.coverages = logged.coverages
        return result


async def _recorded(recorder: HistoryRecorder, *, interrupted: bool) -> list[CommitRecord]:
    """Every commit of the run; after an interruption those that are here, if the server does not answer."""
    if not interrupted:
        return await recorder.stop()
    with suppress(Unavailable):
        await recorder.stop(within_s=INTERRUPTED_S)
    return recorder.commits


@asynccontextmanager
async def _client(state: Path, env: Env) -> AsyncIterator[Client]:
    if not (state / "admin.kubeconfig").exists():
        raise NotFound(no_cluster(state, "kedge up --detach"))
    transport = HttpTransport(read_kubeconfig(state / "admin.kubeconfig"))
    try:
        yield Client(transport, env, component="chaos")
    finally:
        await transport.close()


class _ChaosNotes:
    """The events of a run, kept in its result and reported as they happen."""

    def __init__(self, result: ChaosResult, env: Env, report: Callable[[str, str], None]) -> None:
        self.result = result
        self._env = env
        self._report = report

    def note(self, kind: str, text: str) -> None:
        self.result.faults += kind == "fault"
        self.result.outside.append(OutsideEvent(self._env.now(), kind, text))
        self._report(kind, text)


class _ChaosRunner:
    def __init__(
        self, scenario: Scenario, live: LiveState, recorder: HistoryRecorder, notes: _ChaosNotes, env: Env
    ) -> None:
        self._scenario = scenario
        self._live = live
        self._recorder = recorder
        self._result = notes.result
        self._note = notes.note
        self._env = env
        self._seen = 0
        """Commits that were applied to the view."""
        self._standing: list[StandingExpectation] = []
        """Expectations that hold always, as far as the steps have come."""
        self._broken: set[str] = set()
        """Rules that hold always and were broken: each is reported once."""

    async def run(self) -> None:
        for name in (each.name for each in self._scenario.world.nodes):
            self._live.node(name)
        watching = self._env.spawn(self._watch(), name="follow the cluster")
        try:
            if await self._take_steps() and await self._take_expectations():
                await self._live.heal()
                await self._settle()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _take_steps(self) -> bool:
        for body in self._scenario.world.objects:
            await self._live.user.apply(body, namespace=namespace_of(body))
        begin_s = self._env.monotonic()
        always = [each for each in self._scenario.expect if each.within_s is None]
        self._standing += [StandingExpectation(each, begin_s=begin_s) for each in always]
        for number, step in enumerate(self._scenario.steps):
            if not await self._take(number, step, begin_s):
                return False
        return True

    async def _take(self, number: int, step: ScenarioStep, begin_s: float) -> bool:
        """Wait for the moment of a step and carry it out. False if the run is over."""
        if step.at_s is not None:
            await asyncio.sleep(max(0.0, begin_s + step.at_s - self._env.monotonic()))
        if step.when is not None and (mismatch := await self._wait(step.when, step.when_within_s)):
            text = f"line {step.line}: {step.when.summary}: {mismatch} after {step.when_within_s:g}s"
            return self._violate(f"step {number + 1} starts in time", text)
        await asyncio.sleep(step.after_s)
        self._note("step", step.summary)
        self._result.steps += 1
        if step.expectation is not None and step.expectation.within_s is None:
            self._standing.append(StandingExpectation(step.expectation, begin_s=begin_s))
            return True
        if step.expectation is not None:
            return await self._expect(step.expectation)
        assert step.verb is not None
        try:
            async with asyncio.timeout(STEP_S + float(step.args.get("down", 0.0))):
                await LIVE_VERBS[step.verb.name](self._live, step.args)
        except (StepFailed, OperatingError, TimeoutError) as error:
            why = str(error) or f"the API did not confirm it in {STEP_S:.0f} s"
            return self._violate(f"step {number + 1} can be done", f"line {step.line}: {step.summary}: {why}")
        return True

    async def _take_expectations(self) -> bool:
        for each in self._scenario.expect:
            if each.within_s is not None and not await self._expect(each):
                return False
        return True

    async def _expect(self, expectation: Expectation) -> bool:
        within_s = expectation.within_s or 0.0
        mismatch = await self._wait(expectation.predicate, within_s)
        if not mismatch:
            self._note("held", expectation.name)
            return True
        text = f"line {expectation.line}: not within {within_s:g}s: {expectation.predicate.summary}, but {mismatch}"
        return self._violate(expectation.name, text)

    async def _settle(self) -> None:
        """Wait until every node is ready again: the faults are over."""
        deadline_s = self._env.monotonic() + self._scenario.settle_s
        while self._scenario.settle_s and (late := list(self._unready())):
            if self._env.monotonic() >= deadline_s:
                self._violate("nodes are ready after the faults", f"{', '.join(late)}: not ready")
                return
            await asyncio.sleep(LOOK_S)

    def _unready(self) -> Iterator[str]:
        for found in self._live.view.all(NODE_KIND):
            node = found.as_view(NodeView)
            if found.key.name in self._live.nodes and not is_true(node.status.conditions, "Ready"):
                yield found.key.name

    # -- observation -------------------------------------------------------------------------------

    async def _wait(self, predicate: Predicate, within_s: float) -> str:
        """Wait for a predicate. Returns the state found instead; empty if it holds."""
        with suppress(Unavailable):  # the server may be down: then the predicate fails by its own time
            await self._recorder.catch_up()  # an older state must not be taken for the result of a step
        self._follow()
        deadline_s = self._env.monotonic() + within_s
        while mismatch := predicate.mismatch(self._live.view):
            if self._env.monotonic() >= deadline_s:
                return mismatch
            await asyncio.sleep(LOOK_S / 2)
        return ""

    async def _watch(self) -> None:
        """Follow the commits, and look for containers that run twice."""
        while True:
            self._follow()
            for text in self._live.processes.doubles():
                self._violate_once(DOUBLES, text)
            await asyncio.sleep(LOOK_S)

    def _follow(self) -> None:
        for commit in self._recorder.commits[self._seen :]:
            self._seen += 1
            self._live.view.apply(commit)
            self._check_always(commit)

    def _check_always(self, commit: CommitRecord) -> None:
        for each in self._standing:
            if mismatch := each.mismatch(self._live.view, self._env.monotonic()):
                self._violate_once(each.name, f"{mismatch} (revision {commit.revision})")

    def _violate_once(self, rule: str, text: str) -> None:
        if rule not in self._broken:
            self._broken.add(rule)
            self._violate(rule, text)

    def _violate(self, rule: str, text: str) -> bool:
        self._result.violations.append(f"{rule}: {text}")
        self._note("violation", f"{rule}: {text}")
        return False


def keep_chaos(scenario: Scenario, result: ChaosResult, folder: Path) -> Path:
    """Write the records of a run to a kept file in `folder`.

    Raises:
        BadKeptFile: it cannot be written there.
    """
    path = folder / f"{scenario.name}-{result.start.at:%Y%m%dT%H%M%S}{SUFFIX}"
    kept = KeptScenario(scenario.name, scenario.source, "", None, 0.0, names=dict(scenario.names))
    write_kept(path, [Section(SCENARIO, CODEC_VERSION, msgspec.json.encode(kept)), *_sections(result)])
    return path


def _sections(result: ChaosResult) -> Iterator[Section]:
    encoder = RecordEncoder(hiding_key=os.urandom(32))
    yield from map(parse_section, encoder.state(result.start))
    for event in result.outside:
        yield from map(parse_section, encoder.outside(event))
    for commit in result.commits:
        yield from map(parse_section, encoder.commit(commit))
    for decision in result.decisions:
        yield from map(parse_section, encoder.decision(decision) or ())
    for coverage in result.coverages:
        yield from map(parse_section, encoder.coverage(coverage))
