"""Scripted faults of a scenario, at API semantics: a late watch, a lost reply to a named write.

`ScriptedCluster` is the simulated cluster with transports that follow a `FaultScript`. Unlike a swarm, the scenario
names component, verb and object.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec

from kedge.api.requests import (
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Reply,
    Request,
    WatchEvent,
    Written,
)
from kedge.api.wellknown import SIM_TOUCHED
from kedge.errors import Compacted, OperatingError, OutcomeUnknown, Refused, Unavailable
from kedge.keys import Key
from kedge.sim.cluster import API, Cluster, RemoteTransport
from kedge.sim.cluster.links import Served
from kedge.sim.kernel import Host, Simulation

WRITES = ("create", "update", "patch", "delete", "bind", "reserve", "evict")
"""Verbs whose reply may be lost."""


@dataclass(slots=True)
class LostReply:
    """The next matching replies are lost after the commit, or the requests before it."""

    verb: str
    to: str
    """The host of the caller, or a prefix of its name."""
    on: Key
    """Kind, and patterns of namespace and name."""
    after_commit: bool
    timeout_s: float
    left: int

    def fits(self, host: str, verb: str, key: Key) -> bool:
        return self.left > 0 and verb == self.verb and host.startswith(self.to) and _matches(key, self.on)


@dataclass(slots=True)
class LateWatch:
    """Events of a watch are held back until `until_s`."""

    kind: str
    to: str
    until_s: float


@dataclass(slots=True)
class SlowRequests:
    """Requests of a component take `by_s` longer until `until_s`."""

    to: str
    by_s: float
    until_s: float
    status_of: str = ""
    """Only writes of the status of this kind; empty for all requests."""


@dataclass(slots=True)
class StaleLists:
    """Lists of a kind that fill a cache are `revisions` old until `until_s`."""

    kind: str
    to: str
    revisions: int
    until_s: float


@dataclass(slots=True)
class Conflicts:
    """Another client changes an object just before each of the next writes to it."""

    by: str
    on: Key
    """Kind, and patterns of namespace and name."""
    left: int

    def fits(self, host: str, key: Key) -> bool:
        return self.left > 0 and host.startswith(self.by) and _matches(key, self.on)


def _matches(key: Key, pattern: Key) -> bool:
    return (
        key.kind == pattern.kind
        and fnmatchcase(key.namespace, pattern.namespace)
        and fnmatchcase(key.name, pattern.name)
    )


@dataclass
class FaultScript:
    """The faults that steps have placed so far."""

    sim: Simulation
    on_strike: Callable[[], None]
    """Called after each fault and each refusal."""
    lost: list[LostReply] = field(default_factory=list)
    late: list[LateWatch] = field(default_factory=list)
    slow: list[SlowRequests] = field(default_factory=list)
    stale: list[StaleLists] = field(default_factory=list)
    conflicts: list[Conflicts] = field(default_factory=list)
    disk: SlowRequests | None = None
    streams: list[_LateStream] = field(default_factory=list)
    """Every watch that was opened and has not broken."""
    struck: list[str] = field(default_factory=list)
    """Every scripted fault that struck, and every request that timed out by one, as text."""
    refused: list[str] = field(default_factory=list)
    """Every write that the API server refused, as text."""

    def strike(self, text: str) -> None:
        self.struck.append(text)
        self.sim.faults.record_strike(text)
        self.on_strike()

    def time_out(self, text: str) -> None:
        """The sender of a write gives up waiting for its reply."""
        self.struck.append(text)
        self.sim.note("timeout", text)
        self.on_strike()

    def refuse(self, text: str) -> None:
        self.refused.append(text)
        self.sim.note("refused", text)
        self.on_strike()

    def lost_reply(self, host: str, verb: str, key: Key) -> LostReply | None:
        if not self.sim.faults.active:
            return None
        return next((rule for rule in self.lost if rule.fits(host, verb, key)), None)

    def held_until_s(self, host: str, kind: str) -> float:
        if not self.sim.faults.active:
            return 0.0
        return max((each.until_s for each in self.late if each.kind == kind and host.startswith(each.to)), default=0.0)

    def delay_s(self, host: str, request: Request[Any]) -> float:
        """How much longer a request of this host takes now."""
        if not self.slow or not self.sim.faults.active:
            return 0.0
        status = request.target.kind if getattr(request, "subresource", "") == "status" else None
        return max(
            (
                each.by_s
                for each in self.slow
                if host.startswith(each.to)
                and self.sim.now_s < each.until_s
                and (not each.status_of or each.status_of == status)
            ),
            default=0.0,
        )

    def disk_s(self) -> float:
        """How long a commit waits for the disk now."""
        slow = self.disk if self.sim.faults.active else None
        return slow.by_s if slow is not None and self.sim.now_s < slow.until_s else 0.0

    def staleness(self, host: str, request: Request[Any]) -> int:
        """How many revisions old the answer to a list is. Only a list that fills a cache, page by page, may be old."""
        if not self.stale or not isinstance(request, List) or not self.sim.faults.active:
            return 0
        if request.options.limit <= 1 or request.options.continue_token:
            return 0
        kind, now_s = request.target.kind, self.sim.now_s
        fits = (e for e in self.stale if e.kind == kind and host.startswith(e.to) and now_s < e.until_s)
        return max((each.revisions for each in fits), default=0)

    def conflict(self, host: str, key: Key) -> Conflicts | None:
        if not self.sim.faults.active:
            return None
        return next((each for each in self.conflicts if each.fits(host, key)), None)

    def break_watches(self, kind: str, to: str, *, silently: bool = False) -> None:
        """Break the open watches of a kind to a host, each before its next event. Empty names fit all.

        With `silently` they deliver nothing any more, and do not end.
        """
        for stream in [each for each in self.streams if each.fits(kind, to)]:
            self.streams.remove(stream)
            stream.broken, stream.silent = True, silently


class ScriptedCluster(Cluster):
    """A cluster whose transports follow a script."""

    def __init__(self, sim: Simulation, script: FaultScript, **more: Any) -> None:
        self.script = script
        super().__init__(sim, scripted_slowness_s=script.disk_s, **more)

    def transport(self, host: Host, *, server: int = 0) -> RemoteTransport:
        return _ScriptedTransport(host.remote(self.servers[server], API), host.name, self)

    def restart_server(self, host: Host) -> None:
        """Start an API server that is down."""
        if host.up:
            return
        host.restart()
        if not host.restartable:  # a hostile server serves again as it boots
            host.serve(API, Served(self._service(host)))

    async def touch(self, key: Key, text: str) -> None:
        """Change an object as another client, so that a conditional write meets a true conflict."""
        self.script.strike(text)
        stamp = {"metadata": {"annotations": {SIM_TOUCHED: f"{self.sim.now_s:.3f}"}}}
        with suppress(OperatingError):
            await self.store_host.run(self.authority.patch(key, stamp))

    async def list_stale(self, request: List, revisions: int) -> ObjectList:
        """The answer to a list as it was some revisions ago, or the oldest one that is left."""
        newest = (await self.authority.list(request.kind, ListOptions(limit=1))).revision
        options = msgspec.structs.replace(
            request.options, resource_version=str(max(1, newest - revisions)), resource_version_match="Exact"
        )
        try:
            return await self.authority.list(request.kind, options)
        except Compacted:
            return await self.authority.send(request)


class _LateStream:
    """A watch whose events are held back while the script requires it, and then delivered in order."""

    def __init__(self, stream: Any, host: str, kind: str, script: FaultScript) -> None:
        self._stream = stream
        self._host = host
        self._kind = kind
        self._script = script
        self._reported = False
        self.broken = False
        """It breaks before its next event."""
        self.silent = False
        """A broken watch delivers nothing any more, and does not end."""

    def fits(self, kind: str, to: str) -> bool:
        return (not kind or kind == self._kind) and self._host.startswith(to)

    def __aiter__(self) -> _LateStream:
        return self

    async def __anext__(self) -> WatchEvent:
        event: WatchEvent = await anext(self._stream)
        if self.silent:
            self._script.strike(f"the watch of {self._kind} to {self._host} goes silent")
            await asyncio.get_running_loop().create_future()
        if self.broken:
            self._script.strike(f"the watch of {self._kind} to {self._host} breaks")
            await self.aclose()
            raise Unavailable(f"the watch of {self._kind} broke: open it again")
        sim = self._script.sim
        while (until_s := self._script.held_until_s(self._host, self._kind)) > sim.now_s:
            if not self._reported:
                self._reported = True
                self._script.strike(f"the watch of {self._kind} to {self._host} is {until_s - sim.now_s:.0f}s late")
            await asyncio.sleep(min(0.25, until_s - sim.now_s))  # in short steps: faults may stop earlier
        return event

    async def aclose(self) -> None:
        if self in self._script.streams:
            self._script.streams.remove(self)
        await self._stream.aclose()


class _ScriptedTransport(RemoteTransport):
    def __init__(self, remote: Any, host: str, cluster: ScriptedCluster) -> None:
        super().__init__(remote)
        self._host = host
        self._cluster = cluster
        self._script = cluster.script

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        stream = await super().open_watch(request)
        late = _LateStream(stream, self._host, request.target.kind, self._script)
        self._script.streams.append(late)
        return cast("AsyncGenerator[WatchEvent, None]", late)

    async def send(self, request: Request[Reply]) -> Reply:
        if delay_s := self._script.delay_s(self._host, request):
            await asyncio.sleep(delay_s)
        if revisions := self._script.staleness(self._host, request):
            return await self._send_stale(request, revisions)
        if request.label not in WRITES:
            return await super().send(request)
        if (other := self._script.conflict(self._host, request.target)) is not None:
            other.left -= 1
            await self._cluster.touch(request.target, f"another client, before {self._host}, changes {request.target}")
        return await self._send_write(request)

    async def _send_stale(self, request: Request[Reply], revisions: int) -> Reply:
        await super().send(request)  # the request itself passes every link
        self._script.strike(f"the list of {request.target.kind} to {self._host} is {revisions} revisions old")
        return cast("Reply", await self._cluster.list_stale(cast("List", request), revisions))

    async def _send_write(self, request: Request[Reply]) -> Reply:
        key, what = request.target, f"{request.label} {request.target} by {self._host}"
        rule = self._script.lost_reply(self._host, request.label, key)
        if rule is None:
            try:
                return await super().send(request)
            except Refused as error:
                self._script.refuse(f"{what}: {error}")
                raise
        if rule.after_commit:
            written = cast("Written", await super().send(request))
            rule.left -= 1
            self._script.strike(f"the reply to {what} is lost after the commit at revision {written.object.revision}")
        else:
            rule.left -= 1
            self._script.strike(f"the request to {what} is lost before the commit")
        await asyncio.sleep(rule.timeout_s)
        self._script.time_out(f"no answer to {what} within {rule.timeout_s:g}s")
        raise OutcomeUnknown(f"{what}: no answer within {rule.timeout_s:g}s", key=key)


def hosts_of(cluster: Cluster, component: str) -> Sequence[Host]:
    """The hosts of a component: `scheduler` means `scheduler-0` and `scheduler-1`, a node or a server its own host."""
    hosts = dict.fromkeys(process.host for process in cluster.processes)
    own = [host for host in hosts if host.name == component or host.name.rpartition("-")[0] == component]
    if own:
        return own
    if component in cluster.nodes:
        return [cluster.nodes[component].host]
    return [host for host in (*cluster.servers, cluster.store_host) if host.name == component]
