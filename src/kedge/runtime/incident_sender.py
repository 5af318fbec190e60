"""Sends the records of a process for an incident: a recording window with `collect`, which every process follows.

While the window is open, its rule keeps every decision in the log of the process. When it ends, the segments of the log
are sent as they are, also those of earlier runs of the process: a log outlives them.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from kedge.api.views import RecordingWindowView
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.segments import segments
from kedge.runtime.cache import Cache, CacheChange

_log = logging.getLogger("kedge.runtime")


class IncidentServer(Protocol):
    """A server that takes records. Every call may be repeated."""

    async def begin(self, incident: str, process: str) -> None: ...

    async def append(self, incident: str, process: str, part: str, at: int, data: bytes) -> int:
        """Add a slice. Returns the size of the part after it: send from there."""

    async def end(self, incident: str, process: str) -> None: ...


class _Incident(NamedTuple):
    since: datetime
    until: datetime


class IncidentSender:
    """One process in every incident. `run` it; `follow` the windows."""

    def __init__(self, env: Env, log: DecisionLog, *, process: str, server: IncidentServer) -> None:
        """`process` names this run of the process, and no other."""
        self._env = env
        self._log = log
        self._process = process
        self._server = server
        self._open: dict[str, _Incident] = {}
        """Incidents that this process has not sent everything for."""
        self._begun: set[str] = set()
        self._repeat_s: dict[str, float] = {}
        """By incident: when to try again after a failure."""
        self._changed = asyncio.Event()
        self._sent = env.metrics.counter("kedge_incidents_sent_bytes_total", "Bytes of records sent for incidents")
        self._failed = env.metrics.counter(
            "kedge_incidents_failures_total", "Attempts to send records for an incident that failed; each is repeated"
        )

    def follow(self, windows: Cache) -> None:
        windows.subscribe(self._window_changed, name="incidents")

    def _window_changed(self, change: CacheChange) -> None:
        name = change.key.name
        spec = None if change.new is None else change.new.as_view(RecordingWindowView).spec
        if change.new is None or spec is None or not spec.collect or spec.until is None or self._is_old(spec.until):
            self._open.pop(name, None)
            self._repeat_s.pop(name, None)
            return
        if name not in self._open and len(self._open) >= self._env.limits.incidents_max:
            _log.warning("incident %s is not recorded here: %d are open, which is the limit", name, len(self._open))
            return
        opened = change.new.metadata.creation_timestamp or self._env.now()
        self._open[name] = _Incident(min(spec.since or opened, opened), spec.until)
        self._changed.set()

    def _is_old(self, until: datetime) -> bool:
        """Whether a window ended so long ago that no command waits for its records."""
        return self._env.now() - until > timedelta(seconds=self._env.limits.incident_send_s_max)

    async def run(self) -> None:
        """Take part in incidents until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._open:
                self._log.flush()
            for name, incident in tuple(self._open.items()):
                if self._env.monotonic() < self._repeat_s.get(name, 0.0):
                    continue
                try:
                    await self._take_part(name, incident)
                except OperatingError as error:
                    self._begun.discard(name)  # another server may answer next
                    self._repeat_s[name] = self._env.monotonic() + self._env.limits.incident_retry_s
                    self._failed.inc()
                    _log.warning("records for incident %s were not sent: %s", name, error)

    def _pause_s(self) -> float | None:
        """None while no incident is open. In one the log is flushed often: a process that is killed loses little."""
        return self._env.limits.incident_flush_s if self._open else None

    async def _take_part(self, name: str, incident: _Incident) -> None:
        if name not in self._begun:
            await self._server.begin(name, self._process)
            self._begun.add(name)
        if self._env.now() < incident.until:
            return
        for path in self._segments(incident.since):
            await self._send(name, path)
        await self._server.end(name, self._process)
        if self._open.get(name) == incident:
            del self._open[name]
        self._begun.discard(name)
        self._repeat_s.pop(name, None)

    def _segments(self, since: datetime) -> list[Path]:
        """Segments that may have records from then on: those that were written to afterwards."""
        late = since.timestamp() - self._env.limits.decision_log_sync_s
        found = segments(self._log.directory).values()
        return [path for path in found if path.exists() and path.stat().st_mtime >= late]

    async def _send(self, incident: str, path: Path) -> None:
        size = self._env.limits.incident_slice_bytes
        with path.open("rb") as file:
            at = 0
            while True:
                file.seek(at)
                data = file.read(size)
                if not data:
                    return
                reached = await self._server.append(incident, self._process, path.name, at, data)
                self._sent.inc(len(data))
                if reached == at:
                    return  # the server takes no more of it
                at = reached
