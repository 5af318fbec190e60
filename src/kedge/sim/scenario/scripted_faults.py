"""Scripted faults of a scenario, at API semantics: a late watch, a lost reply to a named write.

`ScriptedCluster` is the simulated cluster with transports that follow a `FaultScript`. Unlike a swarm, the scenario
names component, verb and object.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent, Written
from kedge.errors import OutcomeUnknown, Refused
from kedge.keys import Key
from kedge.sim.cluster import API, Cluster, RemoteTransport
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
        return (
            self.left > 0
            and verb == self.verb
            and host.startswith(self.to)
            and key.kind == self.on.kind
            and fnmatchcase(key.namespace, self.on.namespace)
            and fnmatchcase(key.name, self.on.name)
        )


@dataclass(slots=True)
class LateWatch:
    """Events of a watch are held back until `until_s`."""

    kind: str
    to: str
    until_s: float


@dataclass
class FaultScript:
    """The faults that steps have placed so far."""

    sim: Simulation
    on_strike: Callable[[], None]
    """Called after each fault and each refusal."""
    lost: list[LostReply] = field(default_factory=list)
    late: list[LateWatch] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    """Every scripted fault that struck, as text."""
    refused: list[str] = field(default_factory=list)
    """Every write that the API server refused, as text."""

    def strike(self, text: str) -> None:
        self.struck.append(text)
        self.sim.faults.record_strike(text)
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


class ScriptedCluster(Cluster):
    """A cluster whose transports follow a script."""

    def __init__(self, sim: Simulation, script: FaultScript, **more: Any) -> None:
        self.script = script
        super().__init__(sim, **more)

    def transport(self, host: Host, *, server: int = 0) -> RemoteTransport:
        return _ScriptedTransport(host.remote(self.servers[server], API), host.name, self.script)


class _LateStream:
    """A watch whose events are held back while the script requires it, and then delivered in order."""

    def __init__(self, stream: Any, host: str, kind: str, script: FaultScript) -> None:
        self._stream = stream
        self._host = host
        self._kind = kind
        self._script = script
        self._reported = False

    def __aiter__(self) -> _LateStream:
        return self

    async def __anext__(self) -> WatchEvent:
        event: WatchEvent = await anext(self._stream)
        sim = self._script.sim
        while (until_s := self._script.held_until_s(self._host, self._kind)) > sim.now_s:
            if not self._reported:
                self._reported = True
                self._script.strike(f"the watch of {self._kind} to {self._host} is {until_s - sim.now_s:.0f}s late")
            await asyncio.sleep(min(0.25, until_s - sim.now_s))  # in short steps: faults may stop earlier
        return event

    async def aclose(self) -> None:
        await self._stream.aclose()


class _ScriptedTransport(RemoteTransport):
    def __init__(self, remote: Any, host: str, script: FaultScript) -> None:
        super().__init__(remote)
        self._host = host
        self._script = script

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        stream = await super().open_watch(request)
        late = _LateStream(stream, self._host, request.target.kind, self._script)
        return cast("AsyncGenerator[WatchEvent, None]", late)

    async def send(self, request: Request[Reply]) -> Reply:
        if request.label not in WRITES:
            return await super().send(request)
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
        raise OutcomeUnknown(f"{what}: no answer within {rule.timeout_s:g}s", key=key)


def hosts_of(cluster: Cluster, component: str) -> Sequence[Host]:
    """The hosts of a component: `scheduler` means `scheduler-0` and `scheduler-1`, the name of a node its own host."""
    hosts = dict.fromkeys(process.host for process in cluster.processes)
    own = [host for host in hosts if host.name == component or host.name.rpartition("-")[0] == component]
    return own or ([cluster.nodes[component].host] if component in cluster.nodes else [])
