"""Kept decisions, run again: as they were for `kedge why --recheck`, and with changed inputs for `--what-if`.

A scheduling attempt needs the objects of every cache that it read. A recording has them in its received logs, a live
decision log as far as its bound allows. For the others `--what-if` decides on the cluster of now, and `--recheck`
states how many were left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from kedge.agent.core import recheck_sync
from kedge.api.objects import Object
from kedge.api.wellknown import POD_KIND
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers import all_controllers
from kedge.env import Env, system_env
from kedge.errors import Compacted, ReplayDiverged
from kedge.keys import Key
from kedge.limits import Limits
from kedge.metrics import Metrics
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.what_if import InputChange, apply_changes
from kedge.observe.readers.why import Answer, EvidenceLine, placement_text
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision, OutsideEvent
from kedge.runtime import ControllerRuntime, CutOff, ReceivedEvidence, Reconciler, RecordedEvidence, recheck
from kedge.runtime.cache import CacheSet, ReceivedLog
from kedge.runtime.cache.kept_log import KeptLogs
from kedge.scheduler.report.recheck import Held, decide_again, held_at, recheck_attempt
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

DIFFERENCES_MAX: Final = 10
"""Differences that a report lists; the others are counted."""
NO_LOGS: Final = "scheduling attempts, whose caches are not in the records"
_OTHER: Final = "decisions of controllers that are not kedge's own"
REPORTS: Final = "reports, which decide nothing"
_ADMISSION: Final = "decisions of admission, which the commit itself proved"
AGENTS: Final = "syncs of agents that observed nothing: they failed before"


class RecheckReport(NamedTuple):
    """The outcome of running decisions again."""

    agreed: int
    differences: tuple[str, ...]
    skipped: Mapping[str, int]
    """By reason: decisions that were not run again."""

    def lines(self) -> list[EvidenceLine]:
        some = "1 decision was run again and agrees"
        many = f"{self.agreed} decisions were run again and agree" if self.agreed else "no decision was run again"
        found = [some if self.agreed == 1 else many]
        found += [f"not run again: {count} {why}" for why, count in self.skipped.items()]
        found += [f"DIFFERS: {each}" for each in self.differences[:DIFFERENCES_MAX]]
        if len(self.differences) > DIFFERENCES_MAX:
            found.append(f"DIFFERS: {len(self.differences) - DIFFERENCES_MAX} more")
        return [EvidenceLine("recheck", each) for each in found]


class Rerun(NamedTuple):
    """The outcome of one decision that was to run again."""

    skipped: str = ""
    """Why it did not run, as the end of a sentence about several; empty if it ran."""
    difference: str = ""
    """How it came out otherwise; empty if it agrees."""

    @property
    def text(self) -> str:
        return (
            f"DIFFERS: {self.difference}" if self.difference else f"not run: {self.skipped}" if self.skipped else "same"
        )


class DecisionReruns:
    """Runs decisions of one recording again, each on the inputs that its record has."""

    def __init__(self, recording: Recording) -> None:
        self._received = recording.received
        self._outside = recording.outside
        self._usual = env_of(recording)
        self._envs: dict[str, Env] = {}
        """By decider: an environment with the limits of its process."""
        self._reconcilers: dict[Limits, dict[str, Reconciler]] = {}
        self._logs: dict[str, KeptLogs] = {}

    async def run(self, decision: Decision) -> Rerun:
        process = decision.process
        env = self._env_of(process)
        if process not in self._logs:
            self._logs[process] = KeptLogs(self._received, process, env.limits)
        logs = self._logs[process].at(decision.marks)
        if env.limits not in self._reconcilers:
            self._reconcilers[env.limits] = reconcilers_of(env)
        try:
            return Rerun(skipped=await _recheck_one(decision, logs, self._reconcilers[env.limits], env))
        except ReplayDiverged as error:
            return Rerun(difference=str(error))
        except Compacted:
            return Rerun(skipped="decisions whose inputs are no longer in the records")
        except CutOff:
            return Rerun()  # it agrees up to the end of its process

    def _env_of(self, process: str) -> Env:
        if process not in self._envs:
            own = (each for each in self._outside if process in each.data.get("deciders", ()))
            event = next(own, None)
            self._envs[process] = self._usual if event is None else system_env(limits=_limits_of(event))
        return self._envs[process]


async def recheck_decisions(decisions: Iterable[Decision], recording: Recording) -> RecheckReport:
    """Run each decision again on the inputs that its record has, and compare."""
    reruns = DecisionReruns(recording)
    agreed, differences = 0, []
    skipped: Counter[str] = Counter()
    for decision in decisions:
        again = await reruns.run(decision)
        if again.difference:
            differences.append(again.difference)
        elif again.skipped:
            skipped[again.skipped] += 1
        else:
            agreed += 1
    return RecheckReport(agreed, tuple(differences), dict(skipped))


async def _recheck_one(
    decision: Decision, logs: Mapping[str, ReceivedLog], reconcilers: Mapping[str, Reconciler], env: Env
) -> str:
    """Returns why it was not run again; empty if it was."""
    if decision.scheduling is not None:
        if not logs:
            return NO_LOGS
        nothing = "attempts that decided nothing: a reservation held room for the pod"
        return "" if recheck_attempt(decision, logs, env) else nothing
    if decision.part_of:
        return REPORTS
    if decision.pod_run is not None:
        return "" if recheck_sync(decision, env.limits) else AGENTS
    if decision.admission is not None:
        return _ADMISSION
    reconciler = reconcilers.get(decision.controller)
    if reconciler is None:
        return _OTHER
    await recheck(decision, reconciler, ReceivedEvidence(logs) if logs else RecordedEvidence(), env)
    return ""


def env_of(recording: Recording) -> Env:
    """An environment with the limits of the run, where the recording has them: decisions depend on some of them."""
    event = next((each for each in recording.outside if each.data.get("limits")), None)
    return system_env() if event is None else system_env(limits=_limits_of(event))


def _limits_of(event: OutsideEvent) -> Limits:
    known = {each.name for each in fields(Limits)}
    found: dict[str, Any] = event.data.get("limits", {})
    return Limits(**{name: value for name, value in found.items() if name in known})


def reconcilers_of(env: Env) -> dict[str, Reconciler]:
    """Every reconciler by the name of its controller."""
    return {each.name: each.reconciler for each in all_controllers(idle_runtime(env), leases=False)}


def idle_runtime(env: Env) -> ControllerRuntime:
    """For controllers that never run. Their client is never used: a recheck replies from the record."""
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="recheck")
    return ControllerRuntime(client, env, CacheSet(client, env), Recorder(env), None)


# -- changed inputs --------------------------------------------------------------------------------


def what_if_lines(
    changes: Sequence[InputChange],
    texts: Sequence[str],
    attempts: Sequence[Decision],
    recording: Recording,
    now: Held | None,
) -> list[EvidenceLine]:
    """One line for each attempt: its outcome with the changes, beside its outcome without them.

    `now` has the objects of a running cluster: they are decided on where the records lack those of an attempt.
    """
    env = replace(env_of(recording), metrics=Metrics())
    made = []
    for decision in attempts:
        held, basis = _objects_of(decision, recording, now, env)
        if held is None:
            made.append(EvidenceLine("what if", f"{decision.key.name}: the records lack what it was decided on"))
            continue
        before, _ = decide_again(decision, held, env)
        changed = apply_changes(changes, held, decision.key.namespace, lambda key: _versions(key, recording, now))
        after, account = decide_again(decision, changed, env)
        same = "the same as without it: " if after == before else ""
        outcome = placement_text(decision.key.name, after, account)
        made.append(EvidenceLine("what if", f"{', '.join(texts)}: {same}{outcome} (decided {basis})"))
    return made


def _objects_of(decision: Decision, recording: Recording, now: Held | None, env: Env) -> tuple[Held | None, str]:
    logs = KeptLogs(recording.received, decision.process, env.limits).at(decision.marks)
    if logs:
        try:
            return held_at(decision, logs), f"on what attempt {decision.id} had read"
        except Compacted:
            pass
    if now is not None and decision.key in now.get(POD_KIND, {}):
        return now, "on the cluster as it is now"
    return None, ""


def _versions(key: Key, recording: Recording, now: Held | None) -> Iterable[Object]:
    yield from (now or {}).get(key.kind, {}).values()
    for state in recording.states:
        yield from (each for each in state.objects if each.key == key)
    for commit in recording.commits:
        yield from (each for each in commit.written if each.key == key)
    for decision in recording.decisions:
        for call in decision.calls:
            yield from (each for each in call.reply if each.key == key)
        for read in decision.reads:
            yield from (each for each in read.objects if each.key == key)


def with_lines(answer: Answer, lines: Sequence[EvidenceLine]) -> Answer:
    return replace(answer, evidence=(*answer.evidence, *lines))
