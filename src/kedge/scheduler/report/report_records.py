"""Report records: conditions, Events, nominations and evictions that a scheduler writes after an attempt has ended.

An attempt's record is final when it ends, and its reports follow later, or are delayed. Each gets a record of its own,
whose writes carry the id of the attempt: a reader of the written version finds the reasons at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import Any, Final

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, WriteOptions, Written
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import NO_REVISION, Fence, Key, Origin
from kedge.logs import DECISION
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision as Record
from kedge.runtime.recorded_call import recorded_call

KEPT: Final = "other: report"
"""Reports are rare and limited in rate, and each is about something that a person may ask for."""


class ReportRecords:
    """Numbers the reports of one scheduler and records them."""

    def __init__(self, client: Client, env: Env, recorder: Recorder | None, *, scheduler: str, process: str) -> None:
        self._client = client
        self._env = env
        self._recorder = recorder
        self._scheduler = scheduler
        self._process = process
        self._count = 0

    def begin(self, about: Object, attempt: str, fence: Fence | None) -> Report:
        """A report about an object. Without an `attempt` behind it, its writes carry its own id."""
        self._count += 1
        own = f"{self._scheduler}:{self._process}:report-{self._count}"
        record = Record(
            id=own,
            controller=self._scheduler,
            process=self._process,
            key=about.key,
            tenant=about.key.namespace,
            priority=0,
            uid=about.uid,
            generation=about.metadata.generation,
            fence=NO_REVISION if fence is None else fence.revision,
            fenced=self._client.fenced,
            began=self._env.now(),
            part_of=attempt or own,
        )
        return Report(self._client, self._env, self._recorder, record, fence)


class Report:
    """One report: a context in which the writes of a report are made and recorded."""

    def __init__(
        self, client: Client, env: Env, recorder: Recorder | None, record: Record, fence: Fence | None
    ) -> None:
        self._client = client
        self._env = env
        self._recorder = recorder
        self._record = record
        self._fence = fence
        self._origin = Origin(decision=record.part_of)
        self._lines: Token[str]
        """The decision of the lines of this task, before the report."""

    @property
    def decision(self) -> str:
        """The id of the decision that it is a part of."""
        return self._origin.decision

    async def __aenter__(self) -> Report:
        self._lines = DECISION.set(self.decision)
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """The report is over: count its record and keep it. An error of a write is raised as it is."""
        DECISION.reset(self._lines)
        record, recorder = self._record, self._recorder
        if recorder is None or not record.steps:
            return
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        record.took_s = (self._env.now() - record.began).total_seconds()
        record.kept = recorder.why_keep(record) or KEPT
        recorder.take(record)

    async def patch(self, key: Key, patch: Mapping[str, Any], subresource: str = "") -> Written:
        options = WriteOptions(fence=self._fence, origin=self._origin)
        sent = self._client.patch(key, patch, subresource=subresource, options=options)
        return await recorded_call(self._record, self._env, "patch", key, patch, sent)

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Written:
        options = WriteOptions(fence=self._fence, origin=self._origin)
        metadata = body["metadata"]
        key = Key(kind.key_kind, metadata["namespace"], metadata["name"])
        sent = self._client.create(kind, body, options=options)
        return await recorded_call(self._record, self._env, "create", key, body, sent)

    async def evict(self, key: Key, uid: str) -> Written:
        options = DeleteOptions(uid=uid, fence=self._fence, origin=self._origin)
        sent = self._client.evict(key, options)
        return await recorded_call(self._record, self._env, "evict", key, {"uid": uid}, sent)
