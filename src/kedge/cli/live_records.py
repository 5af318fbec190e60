"""The decisions and caches behind the page of a running cluster: those of this process, or those that others send.

`kedge up` has everything in one process. The components of `kedge server` are other processes: a recording window with
`live` makes them send what their logs get, and `growing_part` decodes it as it arrives.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Protocol

from kedge.api.kinds import KINDS
from kedge.api.timestamps import format_time
from kedge.api.wellknown import EVENT_KIND, RECORDING_WINDOW_KIND, SECRET_KIND
from kedge.cli.debug_pages import cache_document, queue_document
from kedge.cli.growing_part import GrowingPart
from kedge.cli.wiring import ControlPlane
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, NotFound, OperatingError
from kedge.keys import Key, Revision
from kedge.observe.readers.recording import Recording
from kedge.runtime.cache.kept_log import received_part
from kedge.server.incidents import IncidentFolder

DECISIONS_MAX: Final = 20_000
"""Decisions that a page shows, the latest."""
NOT_RECORDED: Final = frozenset({EVENT_KIND, SECRET_KIND})
WINDOW_S: Final = 1800.0
"""A window of a page ends by itself after so long: its server may be gone."""


class LiveRecords(Protocol):
    """The records of the components of a cluster."""

    whole_logs: bool
    """Received logs have everything up to now, and not only what decisions read."""

    async def follow(self) -> None:
        """A page asks: record from now on, or go on with it."""

    async def end(self) -> None:
        """No page asks any more."""

    def recording(self) -> Recording:
        """Decisions by the time of their begin, received logs and coverages."""

    def queues(self) -> dict[str, Any]: ...

    def caches(self, newest: Revision) -> dict[str, Any]: ...


class PlaneRecords:
    """Components in this process: their records are in memory."""

    whole_logs = True

    def __init__(self, plane: ControlPlane, env: Env) -> None:
        self._plane = plane
        self._env = env

    async def follow(self) -> None:
        pass

    async def end(self) -> None:
        pass

    def recording(self) -> Recording:
        decisions = list(islice(self._plane.recorder.decisions(), DECISIONS_MAX))[::-1]
        deciders = sorted({each.process for each in decisions if each.marks})
        caches = [each for each in self._plane.caches if each.name.partition("[")[0] not in NOT_RECORDED]
        return Recording(
            decisions=decisions,
            received=[received_part(each, process="control-plane", deciders=deciders) for each in caches],
            coverages=[self._plane.recorder.coverage_record("control-plane")],
        )

    def queues(self) -> dict[str, Any]:
        return queue_document(self._plane, self._env)

    def caches(self, newest: Revision) -> dict[str, Any]:
        return cache_document(self._plane, self._env, newest)


class CollectedRecords:
    """Components in other processes: a window with `live` makes them send their logs to this server."""

    whole_logs = False

    def __init__(self, client: Client, folder: IncidentFolder, env: Env, url: str) -> None:
        """`url` is the address of this server: it names the window."""
        self._client = client
        self._folder = folder
        self._env = env
        self.window = f"page-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        self._kind = KINDS.of_key_kind(RECORDING_WINDOW_KIND)
        self._key = Key(RECORDING_WINDOW_KIND, "", self.window)
        self._until: datetime | None = None
        """The end of the window; None while none is open."""
        self._parts: dict[tuple[str, str], GrowingPart] = {}
        """By process and part."""

    async def follow(self) -> None:
        if self._read() > self._env.limits.page_records_bytes_max:
            await self.end()
        now = self._env.now()
        if self._until is not None and (self._until - now).total_seconds() > WINDOW_S / 2:
            return
        until = now + timedelta(seconds=WINDOW_S)
        if self._until is None:
            await self.end()  # of a server of this address that was killed
            since = now - timedelta(seconds=self._env.limits.decision_ring_s)
            await self._open(since, until)
        else:
            await self._client.patch(self._key, {"spec": {"until": format_time(until)}})
        self._until = until

    async def _open(self, since: datetime, until: datetime) -> None:
        spec = {
            "until": format_time(until),
            "since": format_time(since),
            "collect": True,
            "live": True,
            "reason": "the page is open",
        }
        body = {"apiVersion": self._kind.api_version, "kind": self._kind.kind, "metadata": {"name": self.window}}
        with suppress(AlreadyExists):
            await self._client.create(self._kind, {**body, "spec": spec})

    async def end(self) -> None:
        self._until = None
        self._parts.clear()
        with suppress(OperatingError):
            await self._client.delete(self._key)
        with suppress(NotFound):
            self._folder.delete(self.window)

    def _read(self) -> int:
        """Decode what has arrived. Returns the bytes of all parts."""
        try:
            found = self._folder.find(self.window)
        except NotFound:
            return 0
        for process in found.processes:
            for part in process.parts:
                place = (process.name, part.name)
                growing = self._parts.setdefault(place, GrowingPart())
                if part.bytes > growing.size:
                    size = part.bytes - growing.size
                    growing.add(self._folder.read(self.window, *place, growing.size, size))
        return found.bytes

    def recording(self) -> Recording:
        self._read()
        merged = Recording()
        for each in self._parts.values():
            part = each.recording
            merged.decisions += part.decisions
            merged.received += part.received
            merged.outside += part.outside
            merged.coverages += part.coverages
            merged.counts += part.counts
        merged.decisions = sorted({each.id: each for each in merged.decisions}.values(), key=lambda each: each.began)
        here = ", ".join(sorted({process for process, _ in self._parts})) or "none yet"
        merged.undecoded.append(f"records of processes that send to other servers; here: {here}")
        return merged

    def queues(self) -> dict[str, Any]:
        raise NotFound("the queues are in other processes: their metrics have the depth and the age of each")

    def caches(self, newest: Revision) -> dict[str, Any]:
        del newest
        raise NotFound("the caches are in other processes: their metrics have the age of each")
