"""The history of the store for incidents: a server records every commit while one is open.

It is a part like the others: a state, then the commits after it, as records of the kept format. Every second what has
been received is appended, so memory holds little of it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import datetime
from typing import Final

from kedge.api.views import RecordingWindowView
from kedge.api.wellknown import RECORDING_WINDOW_KIND
from kedge.cli.live_history import HistoryRecorder, PastRevisions
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError, Unavailable
from kedge.kept import HEADER, encode_end
from kedge.observe.records import OutsideEvent, RecordEncoder
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.incident_sender import IncidentServer

_log = logging.getLogger("kedge.server")
PART: Final = "history.log"
_FLUSH_S: Final = 1.0


class IncidentHistory:
    """Follows the windows, and records the history of each that collects. `run` it."""

    def __init__(self, client: Client, env: Env, server: IncidentServer, *, process: str) -> None:
        """`process` is the name of its component."""
        self._client = client
        self._env = env
        self._server = server
        self._process = f"{process}-{env.new_uid()[:8]}-history"
        self._past = PastRevisions(client, env)
        self._ends: dict[str, datetime] = {}
        """By incident: when it ends."""
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        caches = CacheSet(self._client, self._env)
        caches.cache(self._client.kinds.of_key_kind(RECORDING_WINDOW_KIND)).subscribe(self._changed, name="incidents")
        try:
            await self._past.run()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            await caches.stop()

    def _changed(self, change: CacheChange) -> None:
        name = change.key.name
        spec = None if change.new is None else change.new.as_view(RecordingWindowView).spec
        if spec is None or not spec.collect or spec.live or spec.until is None:  # a page has a history of its own
            if name in self._ends:
                self._ends[name] = self._env.now()
            return
        known = name in self._ends
        if not known and len(self._ends) >= self._env.limits.incidents_max:
            return  # processes that record warn of it
        self._ends[name] = min(spec.until, self._env.now()) if spec.stopped else spec.until
        if not known and not spec.stopped and spec.until > self._env.now():
            task = self._env.spawn(self._record(name, spec.since), name=f"history for incident {name}")
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _record(self, name: str, since: datetime | None) -> None:
        try:
            key = await self._server.begin(name, self._process) or self._env.secret_bytes(32)
            stream = _Stream(self._server, name, self._process, RecordEncoder(hiding_key=key))
            recorder = HistoryRecorder(self._client, self._env, past=self._past)
            stream.add(stream.encoder.state(await recorder.start(since)))
            ended = False
            while not ended:
                left_s = (self._ends[name] - self._env.now()).total_seconds()
                ended = left_s <= 0
                if ended:
                    await self._stop(recorder, stream)
                else:
                    await asyncio.sleep(min(left_s, _FLUSH_S))
                commits, recorder.commits = recorder.commits, []
                for commit in commits:
                    stream.add(stream.encoder.commit(commit))
                await self._flush(stream)
            stream.end()
            await self._flush(stream, last=True)
        except OperatingError as error:
            _log.warning("the history for incident %s is not complete: %s", name, error)
        with suppress(OperatingError):
            await self._server.end(name, self._process)
        self._ends.pop(name, None)

    async def _flush(self, stream: _Stream, *, last: bool = False) -> None:
        """Append what is pending. A server whose disk is full is tried again: at the next flush, or, at the last one,
        until a command would no longer wait for it."""
        end_s = self._env.monotonic() + self._env.limits.incident_send_s_max
        while True:
            try:
                return await stream.flush()
            except Unavailable:
                if last and self._env.monotonic() < end_s:
                    await asyncio.sleep(self._env.limits.incident_retry_s)
                elif last or stream.pending_bytes > self._env.limits.incidents_bytes_max:
                    raise  # the server could never take it
                else:
                    return None

    async def _stop(self, recorder: HistoryRecorder, stream: _Stream) -> None:
        try:
            await recorder.stop()
        except OperatingError as error:
            text = f"the history ends early: {error}"
            stream.add(stream.encoder.outside(OutsideEvent(self._env.now(), "gap", text, self._process)))


class _Stream:
    """A part that is written section by section."""

    def __init__(self, server: IncidentServer, incident: str, process: str, encoder: RecordEncoder) -> None:
        self.encoder = encoder
        self._server, self._incident, self._process = server, incident, process
        self._pending = [HEADER]
        self._at = 0
        self._sections = 0

    def add(self, sections: list[bytes]) -> None:
        self._pending += sections
        self._sections += len(sections)

    async def flush(self) -> None:
        """Append what is pending. It stays pending while the disk of the server is full.

        Raises:
            OperatingError: it was not taken. Flush again later.
        """
        self._pending = [b"".join(self._pending)]
        if self._pending[0]:
            self._at = await self._server.append(self._incident, self._process, PART, self._at, self._pending[0])
            self._pending = []

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self._pending))

    def end(self) -> None:
        self._pending.append(encode_end(self._sections))
