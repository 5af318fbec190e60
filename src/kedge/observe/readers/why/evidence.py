"""The evidence of an answer: the newest known version of each object, the kept decisions, and the gaps in both.

A live cluster and a kept recording give the same evidence, so every answer is the same function of it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from kedge.api.objects import Object
from kedge.api.views import EndpointSliceView
from kedge.api.wellknown import ENDPOINT_SLICE_KIND, NODE_KIND
from kedge.keys import NO_REVISION, Key, Origin, Revision
from kedge.observe.readers.audited_requests import AuditedRequest
from kedge.observe.readers.coverage import coverage_text, with_audit
from kedge.observe.readers.moments import Moment, objects_at, recording_at
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why.condition_writes import ConditionLookup, write_in_history
from kedge.observe.records import CacheMark, CoverageRecord, Decision, KeptTotals, call_ended


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """A version that was written, as far as records show it."""

    key: Key
    revision: Revision
    at: datetime
    origin: Origin


def _no_write(found: Object, name: str) -> None:
    del found, name


@dataclass(frozen=True, slots=True)
class ClusterEvidence:
    """Objects and decisions at one moment."""

    objects: Mapping[Key, Object]
    decisions: Sequence[Decision]
    """Oldest first."""
    now: datetime
    writes: Mapping[Key, Sequence[RecordedWrite]] = field(default_factory=dict)
    """By key, in order of revision."""
    missing: tuple[str, ...] = ()
    """Each gap, as a sentence."""
    coverages: Sequence[CoverageRecord] = ()
    nodes_at: Callable[[Revision], Sequence[str]] | None = None
    """The names of the nodes at a revision, where a history has them; else the nodes of now are used."""
    condition_write: ConditionLookup = _no_write
    """The write behind a condition of an object."""
    totals: KeptTotals | None = None
    """All decisions that were kept, where `decisions` are only those about some objects."""
    node_names: frozenset[str] | None = None
    """Every node that exists; None where the evidence may lack some."""
    has_record: Callable[[str], bool] | None = None
    """Whether there is a record of a decision, by its id, where `decisions` does not have all of them."""
    newest_write: Callable[[str | None, Revision, datetime], RecordedWrite | None] | None = None
    """The newest write to a kind, or to any, after a revision and until a time, where `writes` does not have all of
    them."""
    audited: Sequence[AuditedRequest] = ()
    """Requests about the objects in question, and people's changes of everything a scheduler reads, from the audit
    log."""
    audit_coverage: str = ""
    """The window of the audit log, or that there is none; empty for a recording."""

    _by_kind: dict[str, list[Object]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The objects of each kind, by key; filled when one is first asked for."""

    _by_owner: dict[str, list[Object]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The objects that have each uid among their owners; filled likewise."""

    def of_kind(self, kind: str) -> list[Object]:
        by_kind = self._by_kind
        if not by_kind:
            for key, each in sorted(self.objects.items()):
                by_kind.setdefault(key.kind, []).append(each)
        return by_kind.get(kind, [])

    def owned(self, kind: str, uids: set[str]) -> list[Object]:
        """Objects of `kind` that one of these objects controls, by key."""
        found = {
            each.key: each
            for uid in uids
            for each in self.dependents(uid)
            if each.key.kind == kind
            and any(owner.controller and owner.uid == uid for owner in each.metadata.owner_references)
        }
        return [found[key] for key in sorted(found)]

    def dependents(self, uid: str) -> list[Object]:
        """Objects that have this one among their owners."""
        by_owner = self._by_owner
        if not by_owner:
            for each in self.objects.values():
                for owner in each.metadata.owner_references:
                    by_owner.setdefault(owner.uid, []).append(each)
        return by_owner.get(uid, [])

    def listed_uids(self) -> frozenset[str]:
        """The uids of the pods that EndpointSlices send work to. An endpoint without a `ready` condition is ready."""
        return frozenset(
            endpoint.target_ref.uid
            for found in self.of_kind(ENDPOINT_SLICE_KIND)
            for endpoint in found.as_view(EndpointSliceView).endpoints
            if endpoint.target_ref is not None and endpoint.conditions.ready is not False
        )

    def about(self, key: Key, uid: str = "") -> list[Decision]:
        """Decisions about one incarnation of an object, oldest first."""
        return [each for each in self.decisions if each.key == key and (not uid or each.uid in ("", uid))]

    def is_recorded(self, decision_id: str) -> bool:
        """Whether there is a record of this decision."""
        if self.has_record is not None:
            return self.has_record(decision_id)
        return any(each.id == decision_id for each in self.decisions)

    def of_generation(self, key: Key, generation: int) -> ClusterEvidence:
        """The same without decisions about other generations of `key`."""
        kept = [each for each in self.decisions if each.key != key or each.generation == generation]
        return replace(self, decisions=kept)

    def revision_at(self, decision: Decision) -> Revision:
        """A revision that the store had reached when a decision began: the largest one that any record shows.

        Revisions are one sequence of one store, so every version up to it existed then. It needs no time of its own.
        """
        earlier = [each for each in self.about(decision.key) if each.began <= decision.began]
        reached = max((mark.revision for each in (decision, *earlier) for mark in each.marks), default=NO_REVISION)
        for request in self.audited:
            if request.at <= decision.began:
                reached = max(reached, request.revision, request.revision_before)
        write = self._newest_write(None, reached, decision.began)
        return reached if write is None else write.revision

    def newer_than(self, mark: CacheMark, at: datetime, reached: Revision) -> RecordedWrite | None:
        """The newest write of the cache's kind that the cache did not have at `at`, though it was committed.

        `reached` is a revision that the store had then. A running cluster has no record of some writes, such as those
        of people and those beside a write of another object: their versions and the audit log show them.
        """
        kind = mark.cache.partition("[")[0]
        found = [
            RecordedWrite(each.key, each.revision, at, each.origin)
            for each in self.of_kind(kind)
            if mark.revision < each.revision <= reached
        ]
        for each in self.audited:
            if each.key.kind == kind and each.changed and each.revision > mark.revision and each.at <= at:
                found.append(RecordedWrite(each.key, each.revision, each.at, Origin("", each.decision, each.user)))
        if (write := self._newest_write(kind, mark.revision, at)) is not None:
            found.append(write)
        return max(found, key=lambda each: each.revision, default=None)

    def _newest_write(self, kind: str | None, after: Revision, until: datetime) -> RecordedWrite | None:
        if self.newest_write is not None:
            return self.newest_write(kind, after, until)
        found = [
            each
            for key, writes in self.writes.items()
            if kind is None or key.kind == kind
            for each in writes
            if each.revision > after and each.at <= until
        ]
        return max(found, key=lambda each: each.revision, default=None)

    def changed_since(self, mark: CacheMark) -> Object | None:
        """The newest object of the cache's kind with a version that the cache did not have."""
        found = [each for each in self.of_kind(mark.cache.partition("[")[0]) if each.revision > mark.revision]
        return max(found, key=lambda each: each.revision, default=None)

    def coverage(self) -> str:
        """The window of the decisions, and how many they are."""
        return with_audit(coverage_text(self.decisions, self.coverages, self.totals), self.audit_coverage)


def writes_of(decisions: Iterable[Decision]) -> dict[Key, list[RecordedWrite]]:
    """Every write that a kept decision made, by key."""
    found: dict[Key, list[RecordedWrite]] = {}
    for decision in decisions:
        for call in decision.calls:
            if call.outcome == "done" and call.reply and call.revision != NO_REVISION:
                at = call_ended(decision, call)
                key = call.reply[0].key
                found.setdefault(key, []).append(RecordedWrite(key, call.revision, at, call.reply[0].origin))
    for writes in found.values():
        writes.sort(key=lambda each: each.revision)
    return found


def recorded_writes(recording: Recording) -> Mapping[Key, Sequence[RecordedWrite]]:
    """Every write with its time: of all commits, where a recording has them; else of its decisions alone."""
    if not recording.states:
        return writes_of(recording.decisions)
    found: dict[Key, list[RecordedWrite]] = {}
    for commit in recording.commits:
        for each in commit.written:
            write = RecordedWrite(each.key, commit.revision, commit.at, each.origin)
            found.setdefault(each.key, []).append(write)
    return found


def evidence_of(
    recording: Recording, *, revision: Revision | None = None, at: datetime | None = None
) -> ClusterEvidence:
    """The evidence at the end of a recording, or when the store was at `revision`: at its commit, or later `at`."""
    commits = [each for each in recording.commits if revision is None or each.revision <= revision]
    if at is None:
        times = [*(each.at for each in recording.states), *(each.at for each in commits)]
        at = max(times, default=datetime.min.replace(tzinfo=UTC))
    if revision is not None:
        recording = recording_at(recording, Moment(revision, at))
    kept, objects = recording.decisions, objects_at(recording)
    missing = [f"a part of the file cannot be read: {gap.why}" for gap in recording.gaps if gap.bytes]
    return ClusterEvidence(
        objects,
        sorted(kept, key=lambda each: each.began),
        at,
        recorded_writes(recording),
        (*missing, *recording.undecoded),
        recording.coverages,
        partial(_nodes_at, recording),
        lambda found, name: write_in_history(found, name, recording.states, commits),
        node_names=_node_names(objects) if recording.states and not missing else None,
    )


def _node_names(objects: Iterable[Key]) -> frozenset[str]:
    return frozenset(key.name for key in objects if key.kind == NODE_KIND)


def _nodes_at(recording: Recording, revision: Revision) -> Sequence[str]:
    """The names of the nodes when the store was at `revision`, in order."""
    names: set[str] = set()
    for state in recording.states:
        names.update(each.key.name for each in state.objects if each.key.kind == NODE_KIND)
    for commit in recording.commits:
        if commit.revision <= revision:
            names.update(each.key.name for each in commit.written if each.key.kind == NODE_KIND)
            names.difference_update(key.name for key in commit.deleted if key.kind == NODE_KIND)
    return sorted(names)
