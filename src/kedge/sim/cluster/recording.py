"""The recording of a simulated cluster: its commits, decisions, received logs and outside events, as records.

The same records as a live cluster's, so the same readers work. Collecting them draws nothing and awaits nothing: a run
that is recorded is the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kedge.api.kinds import KINDS
from kedge.kept import Section, parse_section
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import (
    PROCESS_ENDED,
    RECORDING_ENDED,
    CommitRecord,
    Decision,
    OutsideEvent,
    RecordEncoder,
    StoreState,
    cut_off_record,
)
from kedge.runtime.cache.kept_log import received_part
from kedge.server.service import AdmissionChain
from kedge.sim.cluster.links import Commit

if TYPE_CHECKING:
    from kedge.sim.cluster.cluster import Cluster

OUTSIDE = frozenset(
    {"step", "fault", "timeout", "crash", "restart", "machine", "partition", "violation", "phase", "held", "view"}
)
"""Kinds of events in the trace that no component of a cluster could record: people, faults, and judges."""
_OBJECTS = frozenset(kind.key_kind for kind in KINDS)
"""Other kinds of keys are records of the store and the service: fences, operations, registrations."""


class ClusterRecording:
    """Collects the history of one cluster from its first commit on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._env = cluster.sim.driver.env()
        self._begin = self._env.now() - timedelta(seconds=cluster.sim.now_s)
        self._state = StoreState(0, self._env.now(), ())
        self._commits: list[CommitRecord] = []
        data = {"limits": asdict(cluster.limits), "policies": cluster.admission.describe()}
        self._outside = [OutsideEvent(self._env.now(), "start", "the cluster starts", data=data)]
        cluster.sim.check_always(self._record)
        cluster.sim.add_sections(self.sections)

    def _record(self, commit: Commit) -> None:
        keys = [key for key in dict.fromkeys(commit.keys) if key.kind in _OBJECTS]
        if not keys:
            return
        found = [(key, self._cluster.find(key)) for key in keys]
        self._commits.append(
            CommitRecord(
                commit.revision,
                self._env.now(),
                tuple([each for _, each in found if each is not None]),
                tuple([key for key, each in found if each is None]),
            )
        )

    def admission_changed(self, text: str, servers: tuple[str, ...], chain: AdmissionChain) -> None:
        data: dict[str, Any] = {"servers": list(servers), "policies": chain.describe()}
        self._outside.append(OutsideEvent(self._env.now(), "admission", text, data=data))

    def time_of(self, at_s: float) -> datetime:
        """The wall clock at a virtual time."""
        return self._begin + timedelta(seconds=at_s)

    def recording(self) -> Recording:
        """Everything so far."""
        made = Recording(states=[self._state], commits=list(self._commits), outside=list(self._outside))
        for event in self._cluster.sim.world.trace.events:
            if event.kind in OUTSIDE:
                made.outside.append(OutsideEvent(self.time_of(event.at_s), event.kind, event.text, event.host))
        made.outside.sort(key=lambda each: each.at)
        lives: dict[str, int] = {}
        for process in self._cluster.processes:
            name = process.host.name
            lives[name] = lives.get(name, 0) + 1
            decisions = _add_decisions(made, process.context.recorder, f"{name}#{lives[name]}", ended=process.ended)
            deciders = dict.fromkeys(each.process for each in decisions)
            for cache in process.context.caches:
                made.received.append(received_part(cache, process=f"{name}#{lives[name]}", deciders=deciders))
        for node in self._cluster.nodes.values():
            for life, agent in enumerate(node.agents, 1):
                _add_decisions(made, agent.recorder, f"{node.name}#{life}")
        return made

    def sections(self) -> Iterator[Section]:
        """Everything so far, as sections of a kept file."""
        encoder, made = RecordEncoder(), self.recording()
        for state in made.states:
            yield from map(parse_section, encoder.state(state))
        for event in made.outside:
            yield from map(parse_section, encoder.outside(event))
        for commit in made.commits:
            yield from map(parse_section, encoder.commit(commit))
        for part in made.received:
            yield from map(parse_section, encoder.received(part))
        for decision in made.decisions:
            yield from map(parse_section, encoder.decision(decision) or [])
        for coverage in made.coverages:
            yield from map(parse_section, encoder.coverage(coverage))
        for counts in made.counts:
            yield from map(parse_section, encoder.counts(counts))


def _add_decisions(made: Recording, recorder: Recorder, process: str, *, ended: bool = False) -> list[Decision]:
    """Add what a recorder holds. Returns its decisions, oldest first, then those that were cut off."""
    # A crash parks the work of a process, so the records of decisions that it cut off are still there.
    why = PROCESS_ENDED if ended else RECORDING_ENDED
    decisions = [*recorder.decisions()][::-1]
    decisions += [cut_off_record(each, why) for each in recorder.unfinished()]
    made.decisions += decisions
    made.coverages.append(recorder.coverage_record(process))
    made.counts.append(recorder.counts_record(process))
    return decisions
