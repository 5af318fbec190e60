"""The event writer of a controller or an agent: writes Events about its transitions, aggregated and bounded.

A reconcile notes an event through its context, an agent through its records; the note costs no request. An object has
one Event for each reason, and a bounded rate. A lost Event fails nothing: it is counted, and the status has the fact.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kedge.api.event_bodies import count_of, event_body, event_key, event_repeat
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key, Origin
from kedge.logs import DECISION
from kedge.tasks import gather_ended

SUBJECTS_MAX: Final = 5
"""Names in one message; the others are counted."""
_KNOWN_MAX: Final = 4_096
"""Objects and Events that are remembered. The next write of a forgotten one reads the count."""


class EventNote(NamedTuple):
    """A transition that a reconcile, or a sync of an agent, made."""

    about: Object
    event_type: str
    reason: str
    text: str
    subject: str = ""
    """The name that differs between transitions of one kind, such as that of a created pod."""


@dataclass(slots=True)
class _PendingEvent:
    """Notes of one object and reason that are not written yet."""

    note: EventNote
    decision: str
    fence: Fence | None
    count: int = 0
    subjects: list[str] = field(default_factory=list)

    def add(self, note: EventNote, decision: str, fence: Fence | None) -> None:
        if note.text != self.note.text:
            self.subjects.clear()
        self.note, self.decision, self.fence = note, decision, fence
        self.count += 1
        if note.subject:
            self.subjects.append(note.subject)

    @property
    def message(self) -> str:
        more = len(self.subjects) - SUBJECTS_MAX
        names = ", ".join(self.subjects[:SUBJECTS_MAX]) + (f" and {more} more" if more > 0 else "")
        return f"{self.note.text}: {names}" if names else self.note.text


class _EventRate:
    """A token bucket: `burst` Events of one object at once, then one for each `refill_s`."""

    __slots__ = ("_at_s", "_room")

    def __init__(self, burst: int, now_s: float) -> None:
        self._room = float(burst)
        self._at_s = now_s

    def take(self, burst: int, refill_s: float, now_s: float) -> bool:
        self._room = min(float(burst), self._room + (now_s - self._at_s) / refill_s)
        self._at_s = now_s
        if self._room < 1.0:
            return False
        self._room -= 1.0
        return True


class EventWriter:
    """Writes the Events of one component, one at a time."""

    def __init__(self, client: Client, env: Env, component: str) -> None:
        self._client = client
        self._env = env
        self._component = component
        self._pending: OrderedDict[Key, _PendingEvent] = OrderedDict()
        self._counts: OrderedDict[Key, int] = OrderedDict()
        """By the key of an Event: its count, as this process wrote it last."""
        self._rates: OrderedDict[str, _EventRate] = OrderedDict()
        """By the uid of the object."""
        self._task: asyncio.Task[None] | None = None
        self._written = env.metrics.counter(
            "kedge_events_written_total", "Events written, new or repeated", ("controller",)
        ).labels(component)
        self._dropped = env.metrics.counter(
            "kedge_events_dropped_total", "Events that were not written, by reason", ("controller", "why")
        )

    def note(self, note: EventNote, *, decision: str, fence: Fence | None) -> None:
        """Write an Event soon. Neither waits nor raises."""
        key = event_key(note.about, note.reason, self._component)
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= self._env.limits.events_pending_max:
                self._drop("queue full")
                return
            if not self._has_room(note.about.uid):
                self._drop("rate")
                return
            pending = self._pending[key] = _PendingEvent(note, decision, fence)
        pending.add(note, decision, fence)
        if self._task is None or self._task.done():
            self._task = self._env.spawn(self._write_all(), name=f"events of {self._component}")

    async def stop(self) -> None:
        """Events that are not written yet are dropped."""
        if self._task is not None:
            self._task.cancel()
            await gather_ended(self._task)
        for _ in self._pending:
            self._drop("stopped")
        self._pending.clear()

    def _has_room(self, uid: str) -> bool:
        limits, now_s = self._env.limits, self._env.monotonic()
        rate = self._rates.get(uid)
        if rate is None:
            rate = self._rates[uid] = _EventRate(limits.event_burst, now_s)
            _forget_oldest(self._rates)
        return rate.take(limits.event_burst, limits.event_refill_s, now_s)

    async def _write_all(self) -> None:
        while self._pending:
            key, pending = self._pending.popitem(last=False)
            try:
                await self._write(key, pending)
                self._written.inc()
            except OperatingError as error:
                self._counts.pop(key, None)
                self._drop("fenced" if isinstance(error, Fenced) else "failed")

    async def _write(self, key: Key, pending: _PendingEvent) -> None:
        DECISION.set(pending.decision)
        options = WriteOptions(fence=pending.fence, origin=Origin(decision=pending.decision))
        known = self._counts.get(key)
        if known is None:
            try:
                await self._create(key, pending, options)
                return
            except AlreadyExists:
                found = await self._client.find(key)
                known = 0 if found is None else count_of(found)
        count = known + pending.count
        patch = event_repeat(message=pending.message, now=self._env.now(), decision=pending.decision, count=count)
        try:
            await self._client.patch(key, patch, options=options)
            self._remember(key, count)
        except NotFound:
            await self._create(key, pending, options)  # it has expired

    async def _create(self, key: Key, pending: _PendingEvent, options: WriteOptions) -> None:
        note = pending.note
        body = event_body(
            key,
            note.about,
            component=self._component,
            event_type=note.event_type,
            reason=note.reason,
            message=pending.message,
            now=self._env.now(),
            decision=pending.decision,
            count=pending.count,
        )
        await self._client.create(self._client.kinds.of_key_kind(EVENT_KIND), body, options=options)
        self._remember(key, pending.count)

    def _remember(self, key: Key, count: int) -> None:
        self._counts[key] = count
        self._counts.move_to_end(key)
        _forget_oldest(self._counts)

    def _drop(self, why: str) -> None:
        self._dropped.labels(self._component, why).inc()


def _forget_oldest(known: OrderedDict[str, _EventRate] | OrderedDict[Key, int]) -> None:
    if len(known) > _KNOWN_MAX:
        known.popitem(last=False)
