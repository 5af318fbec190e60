"""Records of an agent: what each sync of a pod decided, did and wrote, with the pod's uid, bind and node incarnation.

A sync that decides nothing new has no record. `pods` notes the acts; `observe` keeps them. Without a recorder nothing
is noted, and writes carry no decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import HEALTHY, Health, PodObservation, PodPlan
from kedge.api.requests import DeleteOptions, WriteOptions, Written
from kedge.api.views import PodView
from kedge.api.wellknown import BIND_ANNOTATION, NODE_KIND
from kedge.env import Env
from kedge.keys import NO_ORIGIN, Key, Origin, Revision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision, PodAct, PodRun
from kedge.runtime.recorded_call import recorded_call

KEPT: Final = "other: acts of an agent"
"""Acts are few: a start, a stop, a probe that changed. All of them are kept."""


class AgentRecords:
    """Numbers the decisions of one run of an agent."""

    def __init__(self, env: Env, recorder: Recorder | None, node: str) -> None:
        self.env = env
        self.recorder = recorder
        self.node = node
        self.controller = f"agent-{node}"
        self.process = env.new_uid()[:8] if recorder is not None else ""
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
        self._planned: frozenset[PodAct] = frozenset()
        """The acts of the last plan: a stop or a backoff stays in the plan until it is over."""
        self._health: dict[str, Health] = {}
        self._ended: set[tuple[str, int]] = set()
        """Processes whose end was noted, by container and attempt."""

    def begin(self, attempt: int) -> None:
        """A sync begins; `attempt` counts those in a row that failed."""
        agent = self._agent
        if agent.recorder is None:
            return
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

    def end(self, error: BaseException | None = None) -> None:
        """The sync is over. It is counted and kept if it did anything or failed."""
        record, recorder = self._record, self._agent.recorder
        self._record = None
        if record is None or recorder is None or (not record.steps and error is None):
            return
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        record.took_s = (self._agent.env.now() - record.began).total_seconds()
        acted = any(isinstance(step, PodAct) for step in record.steps)
        record.kept = recorder.why_keep(record) or (KEPT if acted else "")
        recorder.take(record)

    # -- acts --------------------------------------------------------------------------------------

    def planned(self, observation: PodObservation, plan: PodPlan) -> None:
        """Note what a plan decides that the one before did not: stops, pauses, refusals; and what it was decided on."""
        record, pod = self._record, observation.pod
        if record is None:
            return
        if pod is not None:
            record.generation, record.priority = pod.metadata.generation, pod.spec.priority or 0
            record.pod_run = PodRun(self._agent.node, self._node_uid(), bind_revision(pod, self._agent.node))
        record.steps.extend(self._probed(observation.health))
        record.steps.extend(self._ends(observation.processes))
        acts = frozenset(_acts_of(plan))
        record.steps.extend(each for each in _acts_of(plan) if each not in self._planned)
        self._planned = acts

    def act(self, verb: str, container: str, why: str = "", attempt: int = 0) -> None:
        """Note an act, or why it failed."""
        if self._record is not None:
            self._record.steps.append(PodAct(verb, container, why, attempt))

    def _probed(self, health: Mapping[str, Health]) -> Iterator[PodAct]:
        for name, now in health.items():
            for text in _changes(self._health.get(name, HEALTHY), now):
                yield PodAct("probe", name, text)
        self._health = dict(health)

    def _ends(self, processes: Sequence[ContainerProcess]) -> Iterator[PodAct]:
        ended = {(each.identity.container, each.identity.attempt): each for each in processes if not each.running}
        for (name, attempt), each in ended.items():
            if (name, attempt) not in self._ended:
                reason = f", {each.reason}" if each.reason else ""
                message = f": {each.message}" if each.message else ""
                yield PodAct("exit", name, f"exit code {each.exit_code}{reason}{message}", attempt)
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


def _acts_of(plan: PodPlan) -> Iterator[PodAct]:
    for stop in plan.stop:
        identity = stop.process.identity
        yield PodAct("stop", identity.container, stop.why, identity.attempt)
    for name, pause_s in plan.paused:
        yield PodAct("back off", name, "it ended and is started again after a pause", delay_s=pause_s)
    if plan.failed:
        yield PodAct("fail", "", f"{plan.failed}{f': {plan.message}' if plan.message else ''}")


def _changes(before: Health, now: Health) -> Iterator[str]:
    """The results that changed, in words."""
    if before.started != now.started:
        yield "started" if now.started else "not started yet"
    if before.ready != now.ready:
        yield "ready" if now.ready else "not ready"
    if before.sick != now.sick:
        yield f"{now.sick}, so the process is stopped" if now.sick else "alive"


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
