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
from kedge.cli.live_history import HistoryRecorder
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
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
        self._ends: dict[str, datetime] = {}
        """By incident: when it ends."""
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        caches = CacheSet(self._client, self._env)
        caches.cache(self._client.kinds.of_key_kind(RECORDING_WINDOW_KIND)).subscribe(self._changed, name="incidents")
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            await caches.stop()

    def _changed(self, change: CacheChange) -> None:
        name = change.key.name
        spec = None if change.new is None else change.new.as_view(RecordingWindowView).spec
        if spec is None or not spec.collect or spec.until is None:
            if name in self._ends:
                self._ends[name] = self._env.now()
            return
        known = name in self._ends
        if not known and len(self._ends) >= self._env.limits.incidents_max:
            return  # processes that record warn of it
        self._ends[name] = spec.until
        if not known and spec.until > self._env.now():
            task = self._env.spawn(self._record(name), name=f"history for incident {name}")
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _record(self, name: str) -> None:
        try:
            await self._server.begin(name, self._process)
            stream = _Stream(self._server, name, self._process, RecordEncoder(hiding_key=self._env.secret_bytes(32)))
            recorder = HistoryRecorder(self._client, self._env)
            stream.add(stream.encoder.state(await recorder.start()))
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
                await stream.flush()
            await stream.end()
        except OperatingError as error:
            _log.warning("the history for incident %s is not complete: %s", name, error)
        with suppress(OperatingError):
            await self._server.end(name, self._process)
        self._ends.pop(name, None)

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
        data = b"".join(self._pending)
        self._pending = []
        if data:
            self._at = await self._server.append(self._incident, self._process, PART, self._at, data)

    async def end(self) -> None:
        self._pending.append(encode_end(self._sections))
        await self.flush()
