"""Sends the records of a process for an incident: a recording window with `collect`, which every process follows.

When the window opens, decisions of the recorder's ring are written to the log of the process, as far back as the window
reaches; while it is open, its rule keeps every decision there. When it ends, the segments of the log are sent as they
are, also those of earlier runs of the process: a log outlives them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kedge.api.views import RecordingWindowSpec, RecordingWindowView
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.segments import segments
from kedge.runtime.cache import Cache, CacheChange

_LATEST = datetime.max.replace(tzinfo=UTC)
_log = logging.getLogger("kedge.runtime")


class IncidentServer(Protocol):
    """A server that takes records. Every call may be repeated."""

    async def begin(self, incident: str, process: str) -> bytes:
        """Take part. Returns the key with which every process hides values; empty from a server that has none."""

    async def append(self, incident: str, process: str, part: str, at: int, data: bytes) -> int:
        """Add a slice. Returns the size of the part after it: send from there."""

    async def end(self, incident: str, process: str) -> None: ...


class _Incident(NamedTuple):
    since: datetime
    until: datetime
    stopped: bool
    """By hand: it has ended, whatever the clock of this process shows."""
    live: bool = False
    """Records are sent while it is open too."""


class IncidentSender:
    """One process in every incident. `run` it; `follow` the windows."""

    def __init__(self, env: Env, log: DecisionLog, recorder: Recorder, *, process: str, server: IncidentServer) -> None:
        """`process` names this run of the process, and no other. `recorder` writes to `log`."""
        self._env = env
        self._log = log
        self._recorder = recorder
        self._process = process
        self._server = server
        self._open: dict[str, _Incident] = {}
        """Incidents that this process has not sent everything for."""
        self._reached: dict[str, datetime] = {}
        """By open incident: the time that the log reaches back to for it."""
        self._first_segment: dict[str, int] = {}
        """By open incident: the number of the segment that was written when this process saw the incident first."""
        self._begun: set[str] = set()
        self._repeat_s: dict[str, float] = {}
        """By incident: when to try again after a failure."""
        self._sent_to: dict[tuple[str, str], int] = {}
        """By incident and segment: how much a server has."""
        self._live_s = 0.0
        """When records of live incidents are sent next."""
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
        if change.new is None or spec is None or not spec.collect or spec.until is None or self._is_old(spec):
            self._forget(name)
            return
        if name not in self._open and len(self._open) >= self._env.limits.incidents_max:
            _log.warning("incident %s is not recorded here: %d are open, which is the limit", name, len(self._open))
            return
        self._first_segment.setdefault(name, self._log.segment_number)
        opened = change.new.metadata.creation_timestamp or self._env.now()
        self._open[name] = _Incident(min(spec.since or opened, opened), spec.until, spec.stopped, spec.live)
        self._changed.set()

    def _is_old(self, spec: RecordingWindowSpec) -> bool:
        """Whether a window ended so long ago that no command waits for its records. One that was stopped by hand is
        removed by the command that waits, so it is never old: the clock of this process may be wrong."""
        late_s = self._env.limits.incident_send_s_max
        return not spec.stopped and spec.until is not None and self._env.now() - spec.until > timedelta(seconds=late_s)

    async def run(self) -> None:
        """Take part in incidents until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            for name in tuple(self._open):
                await self._attempt(name, self._begin(name))
            for name, incident in tuple(self._open.items()):
                await self._reach_back(name, incident.since)
            if self._open:
                self._log.flush()
            for name, incident in tuple(self._open.items()):
                await self._attempt(name, self._take_part(name, incident))

    async def _attempt(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Work for an incident, unless it failed a moment ago. A failure is repeated later."""
        if self._env.monotonic() < self._repeat_s.get(name, 0.0):
            work.close()
            return
        try:
            await work
        except OperatingError as error:
            self._begun.discard(name)  # another server may answer next
            self._repeat_s[name] = self._env.monotonic() + self._env.limits.incident_retry_s
            self._failed.inc()
            _log.warning("records for incident %s were not sent: %s", name, error)

    async def _begin(self, name: str) -> None:
        """Take part. From then on the log hides values with the key of the incident."""
        if name in self._begun:
            return
        key = await self._server.begin(name, self._process)
        self._begun.add(name)
        if key and name == min(self._begun):  # of several incidents at once, all processes take the same
            self._log.hide_with(key)

    def _pause_s(self) -> float | None:
        """None while no incident is open. In one the log is flushed often: a process that is killed loses little."""
        return self._env.limits.incident_flush_s if self._open else None

    async def _take_part(self, name: str, incident: _Incident) -> None:
        await self._begin(name)
        if self._env.now() < incident.until and not incident.stopped:
            await self._send_live(name, incident)
            return
        for path in self._segments(name, incident.since):
            await self._send(name, path)
        await self._server.end(name, self._process)
        if self._open.get(name) == incident:
            self._forget(name)

    async def _send_live(self, name: str, incident: _Incident) -> None:
        if not incident.live or self._env.monotonic() < self._live_s:
            return
        self._live_s = self._env.monotonic() + self._env.limits.incident_live_s
        for path in self._segments(name, incident.since):
            await self._send(name, path)

    def _forget(self, name: str) -> None:
        for place in [each for each in self._sent_to if each[0] == name]:
            del self._sent_to[place]
        self._open.pop(name, None)
        self._reached.pop(name, None)
        self._first_segment.pop(name, None)
        self._begun.discard(name)
        self._repeat_s.pop(name, None)

    async def _reach_back(self, name: str, since: datetime) -> None:
        """Write what the recorder still holds from then on to the log. Others run in between."""
        if since < self._reached.get(name, _LATEST):
            self._reached[name] = since
            for _ in self._recorder.reach_back(name, since):
                await asyncio.sleep(0)

    def _segments(self, name: str, since: datetime) -> list[Path]:
        """Segments that may have records from then on: those that this process wrote since it takes part, and before
        them those that were written to afterwards, with every later one. A clock that is stepped back gives a segment
        an older time than the one before it has."""
        late = since.timestamp() - self._env.limits.decision_log_sync_s
        first_own = self._first_segment.get(name, inf)
        found = [(number, path) for number, path in segments(self._log.directory).items() if path.exists()]
        for place, (number, path) in enumerate(found):
            if number >= first_own or path.stat().st_mtime >= late:
                return [path for _, path in found[place:]]
        return []

    async def _send(self, incident: str, path: Path) -> None:
        size = self._env.limits.incident_slice_bytes
        with path.open("rb") as file:
            at = self._sent_to.get((incident, path.name), 0)
            while True:
                file.seek(at)
                data = file.read(size)
                if not data:
                    return
                reached = await self._server.append(incident, self._process, path.name, at, data)
                self._sent.inc(len(data))
                self._sent_to[incident, path.name] = reached
                if reached == at:
                    return  # the server takes no more of it
                at = reached
