"""Records of an agent: what each sync of a pod decided, did and wrote, with the pod's uid, bind and node incarnation.

A sync that decides nothing new has no record. `pods` notes the acts, `pod_acts` describes them, `observe` keeps them,
and the event writer writes those that users of the pod should see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from kedge.agent.core import pod_acts
from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import HEALTHY, Health, PodObservation, PodPlan
from kedge.agent.core.pod_acts import NotedAct, PodEvent
from kedge.agent.core.pod_evidence import StatusInputs, plan_step, status_step
from kedge.api.event_bodies import NORMAL, WARNING
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, WriteOptions, Written
from kedge.api.views import PodView
from kedge.api.wellknown import BIND_ANNOTATION, NODE_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import AGENT_PREFIX, NO_ORIGIN, Key, Origin, Revision
from kedge.logs import DECISION
from kedge.observe.recording.decision_lines import log_decision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision, PodAct, PodRun, PodSync
from kedge.runtime.event_writer import EventNote, EventWriter
from kedge.runtime.recorded_call import recorded_call

KEPT: Final = "other: acts of an agent"
"""Acts are few: a start, a stop, a probe that changed. All of them are kept."""


class AgentRecords:
    """Numbers the decisions of one run of an agent."""

    def __init__(self, env: Env, recorder: Recorder, client: Client, node: str) -> None:
        self.env = env
        self.recorder = recorder
        self.node = node
        self.controller = f"{AGENT_PREFIX}{node}"
        self.process = env.new_uid()[:8]
        self.events = EventWriter(client, env, self.controller)
        self._count = 0

    def next_id(self) -> str:
        self._count += 1
        return f"{self.controller}:{self.process}:{self._count}"

    def of_pod(self, uid: str, key: Key, node_uid: Callable[[], str]) -> PodRecords:
        return PodRecords(self, uid, key, node_uid)


class PodRecords:
    """The records of one pod. One sync is one decision; acts that the last sync noted too are not repeated."""

    def __init__(self, agent: AgentRecords, uid: str, key: Key, node_uid: Callable[[], str]) -> None:
        self._agent = agent
        self._uid = uid
        self._key = key
        self._node_uid = node_uid
        self._record: Decision | None = None
        self._events: list[PodEvent] = []
        """Events that the current sync has noted."""
        self._planned: frozenset[PodAct] = frozenset()
        """The acts of the last plan: a stop or a backoff stays in the plan until it is over."""
        self._health: dict[str, Health] = {}
        self._ended: set[tuple[str, int]] = set()
        """Processes whose end was noted, by container and attempt."""

    def begin(self, attempt: int) -> None:
        """A sync begins; `attempt` counts those in a row that failed. Lines of its task carry its id until `end`."""
        agent = self._agent
        self._events.clear()
        self._record = Decision(
            id=agent.next_id(),
            controller=agent.controller,
            process=agent.process,
            key=self._key,
            tenant=self._key.namespace,
            priority=0,
            uid=self._uid,
            attempt=attempt,
            began=agent.env.now(),
            pod_run=PodRun(agent.node, self._node_uid(), 0),
        )
        DECISION.set(self._record.id)

    def end(self, pod: Object | None, error: BaseException | None = None) -> None:
        """The sync is over. It is counted and kept if it did anything or failed; Events about `pod` are written."""
        record, recorder = self._record, self._agent.recorder
        self._record = None
        DECISION.set("")
        if record is None or (error is None and all(isinstance(step, PodSync) for step in record.steps)):
            return
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        record.took_s = (self._agent.env.now() - record.began).total_seconds()
        acted = any(isinstance(step, PodAct) for step in record.steps)
        record.kept = recorder.why_keep(record) or (KEPT if acted else "")
        if pod is not None:
            for reason, text, subject, warning in self._events:
                note = EventNote(pod, WARNING if warning else NORMAL, reason, text, subject)
                self._agent.events.note(note, decision=record.id, fence=None)
        log_decision(self._agent.env.log, record)
        recorder.take(record)

    # -- acts --------------------------------------------------------------------------------------

    def planned(self, seen: Object | None, observation: PodObservation, plan: PodPlan) -> None:
        """Note what a plan decides that the one before did not: stops, pauses, refusals; and what it was decided on.

        `seen` is the version of the pod in the observation.
        """
        record, pod = self._record, observation.pod
        if record is None:
            return
        record.steps.append(plan_step(seen, observation, plan))
        if pod is not None:
            record.generation, record.priority = pod.metadata.generation, pod.spec.priority or 0
            record.pod_run = PodRun(self._agent.node, self._node_uid(), bind_revision(pod, self._agent.node))
        for found in (*self._probed(observation.health), *self._ends(observation.processes)):
            self.note(found)
        acts = tuple(pod_acts.planned(plan))
        for each in acts:
            if each.act not in self._planned:
                self.note(each)
        self._planned = frozenset(each.act for each in acts)

    def computed(self, seen: Object, inputs: StatusInputs, *, differs: bool) -> None:
        """Note the inputs of a status, and whether it differs from that of `seen`."""
        if self._record is not None:
            self._record.steps.append(status_step(seen, inputs, differs=differs))

    def note(self, noted: NotedAct) -> None:
        """Note an act, or why it failed."""
        if self._record is not None:
            self._record.steps.append(noted.act)
            if noted.event is not None:
                self._events.append(noted.event)

    def _probed(self, health: Mapping[str, Health]) -> Iterator[NotedAct]:
        for name, now in health.items():
            yield from pod_acts.probed(name, self._health.get(name, HEALTHY), now)
        self._health = dict(health)

    def _ends(self, processes: Sequence[ContainerProcess]) -> Iterator[NotedAct]:
        ended = {(each.identity.container, each.identity.attempt): each for each in processes if not each.running}
        for identity, each in ended.items():
            if identity not in self._ended:
                yield pod_acts.ended(each)
        self._ended = set(ended)

    # -- writes ------------------------------------------------------------------------------------

    @property
    def options(self) -> WriteOptions:
        return WriteOptions(origin=self._origin)

    def delete_options(self) -> DeleteOptions:
        return DeleteOptions(uid=self._uid, grace_s=0, origin=self._origin)

    @property
    def _origin(self) -> Origin:
        return NO_ORIGIN if self._record is None else Origin(decision=self._record.id)

    async def call(self, verb: str, key: Key, intent: Mapping[str, Any], sent: Awaitable[Written]) -> Written:
        """Send a write, and note it with its outcome."""
        if self._record is None:
            return await sent
        return await recorded_call(self._record, self._agent.env, verb, key, intent, sent)


class _BindRecord(msgspec.Struct):
    proved_on: dict[str, int] = msgspec.field(name="provedOn", default_factory=dict)


def bind_revision(pod: PodView, node: str) -> Revision:
    """The node's revision that the bind proved; 0 for a pod that was never bound by a scheduler."""
    text = pod.metadata.annotations.get(BIND_ANNOTATION, "")
    if not text:
        return 0
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=_BindRecord).proved_on.get(str(Key(NODE_KIND, "", node)), 0)
    return 0
