"""Links between the components of `kedge up` and its API: transports on which faults can be placed while they run.

`fault_socket` places them for `kedge chaos`. A link without a fault passes requests on as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec

from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent
from kedge.client.contract import Transport, WrappedTransport
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.keys import Key


class LinkCut(msgspec.Struct, tag="cut"):
    """Every request is refused, and watches break."""


class LinkStall(msgspec.Struct, tag="stall"):
    """Requests and events wait until the fault ends."""


class LinkDelay(msgspec.Struct, tag="delay"):
    """Each request takes longer."""

    by_s: float


class LinkLateWatch(msgspec.Struct, tag="late watch"):
    """Events of a watch wait until the fault ends; then they arrive in order."""

    kind: str


class LinkLostReply(msgspec.Struct, tag="lost reply"):
    """The next matching replies are lost after the commit, or the requests before it."""

    verb: str
    kind: str
    namespace: str
    name: str
    after_commit: bool
    timeout_s: float
    left: int

    def fits(self, verb: str, key: Key) -> bool:
        if self.left <= 0 or verb != self.verb or key.kind != self.kind:
            return False
        return fnmatchcase(key.namespace, self.namespace) and fnmatchcase(key.name, self.name)


LinkFault = LinkCut | LinkStall | LinkDelay | LinkLateWatch | LinkLostReply


class FaultLink(WrappedTransport):
    """The link of one component. Implements `client.contract.Transport`."""

    def __init__(self, name: str, transport: Transport) -> None:
        super().__init__(transport)
        self.name = name
        self.faults: list[LinkFault] = []
        self._streams: set[_LinkStream] = set()
        self._changed = asyncio.Event()

    def add(self, fault: LinkFault) -> None:
        self.faults.append(fault)
        if isinstance(fault, LinkCut):
            self.break_watches("")

    def remove(self, fault: LinkFault) -> None:
        self.faults = [each for each in self.faults if each is not fault]
        self._changed.set()
        self._changed = asyncio.Event()

    def break_watches(self, kind: str) -> int:
        """Break the open watches of a kind, or all of them. Returns how many."""
        broken = [each for each in self._streams if kind in ("", each.kind)]
        for each in broken:
            each.break_now()
        return len(broken)

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        return self._send(request) if self.faults else self._transport.send(request)

    async def _send(self, request: Request[Reply]) -> Reply:
        await self._pass()
        delays = [each.by_s for each in self.faults if isinstance(each, LinkDelay)]
        if delays:
            await asyncio.sleep(max(delays))
        rules = (each for each in self.faults if isinstance(each, LinkLostReply))
        # A read may be about many objects, and has no target then; only writes have replies that are lost.
        lost = None if request.reads else next((e for e in rules if e.fits(request.label, request.target)), None)
        if lost is None:
            return await self._transport.send(request)
        lost.left -= 1
        if lost.after_commit:
            await self._transport.send(request)
        await asyncio.sleep(lost.timeout_s)
        raise OutcomeUnknown(f"no answer to {request.label} {request.target}: a fault lost it", key=request.target)

    async def _pass(self) -> None:
        """Wait while the link stands still.

        Raises:
            Unavailable: it is cut.
        """
        while any(isinstance(each, LinkStall) for each in self.faults):
            await self._changed.wait()
        if any(isinstance(each, LinkCut) for each in self.faults):
            raise Unavailable(f"the link of {self.name} is cut by a fault: it is restored when the fault ends")

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        await self._pass()
        stream = _LinkStream(self, await self._transport.open_watch(request), request.target.kind)
        self._streams.add(stream)
        return cast("AsyncGenerator[WatchEvent, None]", stream)

    async def pass_event(self, kind: str) -> None:
        """Wait until an event of a watch may be delivered."""
        while any(isinstance(e, LinkStall) or (isinstance(e, LinkLateWatch) and e.kind == kind) for e in self.faults):
            await self._changed.wait()

    def forget(self, stream: _LinkStream) -> None:
        self._streams.discard(stream)


class _LinkStream:
    """A watch over a link: it may be held back, and broken while it waits."""

    def __init__(self, link: FaultLink, events: AsyncGenerator[WatchEvent, None], kind: str) -> None:
        self.kind = kind
        self._link = link
        self._events = events
        self._broken = False
        self._waiting: asyncio.Timeout | None = None

    def __aiter__(self) -> _LinkStream:
        return self

    async def __anext__(self) -> WatchEvent:
        try:
            async with asyncio.timeout(None) as self._waiting:
                if self._broken:
                    raise TimeoutError
                event = await anext(self._events)
                if self._link.faults:
                    await self._link.pass_event(self.kind)
                return event
        except TimeoutError as error:
            if not self._broken:
                raise
            raise Unavailable(f"the watch of {self.kind} was broken by a fault: open it again") from error
        finally:
            self._waiting = None

    def break_now(self) -> None:
        self._broken = True
        self._link.forget(self)
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        self._link.forget(self)
        await self._events.aclose()


def links_named(links: Sequence[FaultLink], name: str) -> list[FaultLink]:
    """The link of a node, or that of the control plane for any other component; every link without a name."""
    if not name:
        return list(links)
    return [each for each in links if each.name == name] or [each for each in links if each.name == CONTROL_PLANE]


CONTROL_PLANE = "control-plane"
"""The link that scheduler and controllers of `kedge up` share."""
