"""Decisions run again with one input perturbed, for `kedge coupling`: whether a field decides; which are touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kedge.api.field_notes import FieldNotes
from kedge.api.objects import Object
from kedge.cli.kept_decisions import env_of
from kedge.env import Env
from kedge.errors import Compacted, KedgeError, ReplayDiverged
from kedge.keys import Key
from kedge.observe.readers.coupling import Coupling, CouplingEdge, EdgeVerdict, FieldId
from kedge.observe.readers.coupling.perturbation import changed_versions
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheRead, Decision
from kedge.runtime import CutOff, Reconciler, RecordedEvidence
from kedge.runtime.cache.kept_log import KeptLogs
from kedge.runtime.recheck import difference_on, recheck, touched_fields
from kedge.scheduler.report.recheck import Held, decide_again, held_at

DECISIONS_MAX: Final = 6
"""Decisions that are run again for one edge."""
RUNS_MAX: Final = 24
"""Runs for one edge."""
TOUCHED_MAX: Final = 300
"""Kept decisions without notes that are run again to find the fields that they read."""
VERSIONS_MAX: Final = 8
"""Versions of one object whose values are tried."""


class _ChangedEvidence(RecordedEvidence):
    """The record's own objects, with one object changed or left out."""

    def __init__(self, key: Key, changed: Object | None) -> None:
        self._key = key
        self._changed = changed

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        held = dict(super().state_at(read))
        if self._key in held:
            del held[self._key]
            if self._changed is not None:
                held[self._key] = self._changed
        return held


@dataclass(slots=True)
class PerturbedRuns:
    """Runs the decisions of one recording again. `reconcilers` has the code of controllers, by name."""

    recording: Recording
    reconcilers: Mapping[str, Reconciler]
    env: Env
    _versions: defaultdict[Key, dict[int, Object]] = field(default_factory=lambda: defaultdict(dict))
    _sound: dict[str, bool] = field(default_factory=dict)
    """By decision: whether it runs again as it was recorded."""
    _held: dict[str, Held | None] = field(default_factory=dict)

    @classmethod
    def of(cls, recording: Recording, reconcilers: Mapping[str, Reconciler]) -> PerturbedRuns:
        made = cls(recording, reconcilers, env_of(recording))
        for decision in recording.decisions:
            for read in decision.reads:
                made._know(read.objects)
            for call in decision.calls:
                made._know(call.reply)
        for state in recording.states:
            made._know(state.objects)
        for commit in recording.commits:
            made._know(commit.written)
        return made

    def _know(self, objects: Iterable[Object]) -> None:
        for each in objects:
            self._versions[each.key][each.revision] = each

    # -- fields ------------------------------------------------------------------------------------

    async def note_fields(self, decisions: Iterable[Decision]) -> None:
        """Fill in the fields that kept decisions without notes have read, as far as their code is here."""
        left = TOUCHED_MAX
        for decision in decisions:
            reconciler = self.reconcilers.get(decision.controller)
            noted = decision.touched is not None or decision.scheduling is not None
            if noted or reconciler is None or left <= 0:
                continue
            left -= 1
            try:
                decision.touched = await touched_fields(decision, reconciler, RecordedEvidence(), self.env)
            except (ReplayDiverged, Compacted, CutOff):
                continue

    # -- verdicts ----------------------------------------------------------------------------------

    async def judged(self, coupling: Coupling, decisions: Sequence[Decision]) -> Coupling:
        """The coupling with a verdict on each edge that kept decisions can show."""
        verdicts: dict[FieldId, EdgeVerdict] = {}
        for edge in coupling.edges:
            verdicts[edge.id] = await self._verdict(edge, decisions)
        return coupling.with_verdicts(verdicts)

    async def _verdict(self, edge: CouplingEdge, decisions: Sequence[Decision]) -> EdgeVerdict:
        candidates = [each for each in reversed(decisions) if each.controller == edge.reader]
        if not candidates:
            return EdgeVerdict(None, "not tested: no decision was kept")
        schedules = candidates[0].scheduling is not None
        if not schedules and edge.reader not in self.reconcilers:
            return EdgeVerdict(None, "not tested: the code of this controller is not here; name it with --code")
        tried = runs = 0
        for decision in candidates:
            if tried >= DECISIONS_MAX or runs >= RUNS_MAX:
                break
            found = [each for each in self._inputs(decision) if str(each.key) in edge.objects]
            if not found or not await self._runs_again(decision):
                continue
            tried += 1
            for each in found:
                for text, changed in changed_versions(each, edge.field, self._others(each)):
                    runs += 1
                    difference = await self._difference(decision, each.key, changed)
                    if difference:
                        return EdgeVerdict(
                            decisive=True, text=f"decision {decision.id}, {each.key} {text}: {difference}"
                        )
        if not runs:
            return EdgeVerdict(None, "not tested: no kept decision that runs again has an object of this edge")
        return EdgeVerdict(decisive=False, text=f"{runs} other values in {tried} decisions changed nothing")

    def _others(self, found: Object) -> list[Object]:
        """Other versions of the object, the nearest first."""
        known = self._versions[found.key]
        near = sorted(known, key=lambda revision: abs(revision - found.revision))
        return [known[revision] for revision in near[1 : VERSIONS_MAX + 1]]

    def _inputs(self, decision: Decision) -> Iterable[Object]:
        if decision.scheduling is None:
            return [each for read in decision.reads for each in read.objects]
        held = self._held_by(decision)
        return [] if held is None else [each for objects in held.values() for each in objects.values()]

    def _held_by(self, decision: Decision) -> Held | None:
        if decision.id not in self._held:
            found: Held | None = None
            logs = KeptLogs(self.recording.received, decision.process, self.env.limits).at(decision.marks)
            if logs:
                try:
                    found = held_at(decision, logs)
                except Compacted:
                    found = None
            self._held[decision.id] = found
        return self._held[decision.id]

    async def _runs_again(self, decision: Decision) -> bool:
        if decision.id not in self._sound:
            attempt = decision.scheduling
            if attempt is not None:
                decided = attempt.draw is not None and attempt.choice is not None
                self._sound[decision.id] = decided and self._held_by(decision) is not None
            else:
                try:
                    await recheck(decision, self.reconcilers[decision.controller], RecordedEvidence(), self.env)
                    self._sound[decision.id] = True
                except (ReplayDiverged, Compacted, CutOff):
                    self._sound[decision.id] = False
        return self._sound[decision.id]

    async def _difference(self, decision: Decision, key: Key, changed: Object | None) -> str:
        if decision.scheduling is not None:
            return self._placed_otherwise(decision, key, changed)
        try:
            evidence = _ChangedEvidence(key, changed)
            return await difference_on(decision, self.reconcilers[decision.controller], evidence, self.env)
        except (Compacted, CutOff):
            return ""

    def _placed_otherwise(self, decision: Decision, key: Key, changed: Object | None) -> str:
        held, attempt = self._held_by(decision), decision.scheduling
        if held is None or attempt is None or (changed is None and key == decision.key):
            return ""
        objects = {each: value for each, value in held[key.kind].items() if each != key}
        if changed is not None:
            objects[key] = changed
        try:
            choice, _ = decide_again(decision, {**held, key.kind: objects}, self.env)
        except (KedgeError, LookupError):
            return ""  # the other value makes an attempt that could not have been
        if attempt.choice is None or (choice.node, choice.feasible) == (attempt.choice.node, attempt.choice.feasible):
            return ""
        return f"it chooses {choice.node or 'no node'} of {choice.feasible} feasible ones"


def fields_of_attempt(decision: Decision, held: Held, env: Env) -> dict[str, tuple[str, ...]]:
    """The fields that a scheduling attempt reads, through the state that it is decided on."""
    notes = FieldNotes(1 << 30)
    noted = {kind: {key: notes.wrap(each) for key, each in objects.items()} for kind, objects in held.items()}
    decide_again(decision, noted, env)
    notes.close()
    return notes.touched()
