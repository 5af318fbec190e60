"""What a watcher may be doing, why it goes from one thing to the next, and what it writes to.

`runtime.watcher` is the machine that goes through these states; `runtime.cache` is told of them, and is the sink. There
is nothing here that does anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from kedge.api.objects import Object
from kedge.api.requests import WatchEvent
from kedge.keys import Revision


class WatchReason(StrEnum):
    """Why the watcher went from one state to the next."""

    STARTED = "started"
    LISTED = "listed"
    CONNECTED = "connected"
    PAUSED = "paused"
    """A pause is over."""
    HELD = "held"
    """The breaker of the client is open: nothing was asked, and nothing new is known of the server."""
    ENDED = "ended"
    """The server ended the stream, as servers do now and then."""
    UNAVAILABLE = "unavailable"
    LAGGED = "lagged"
    COMPACTED = "compacted"
    REFUSED = "refused"
    """The server understood, and said no."""
    SILENT = "silent"
    """Nothing was heard for too long."""
    BEHIND = "behind"
    """The stream does not bring what the authority has had for a while."""
    OLDER = "older"
    """A list was older than what was seen before: another server, and it lags."""
    TORN = "torn"
    """The pages of a list were not of one revision."""
    ASKED = "asked"
    """Somebody needs the cache to prove itself."""
    RESYNC = "resync"
    """Time to compare with the authority: a stream may have lost something and not know it."""
    FAILED = "failed"
    """An error that nobody expected. It was reported."""
    STOPPED = "stopped"


# -- states ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListingState:
    """Reading everything, in pages."""

    whole: bool = False
    """In one piece: its pages were lost to compaction before."""


@dataclass(frozen=True, slots=True)
class ConnectingState:
    """Asking for a stream after a revision."""

    after: Revision


@dataclass(frozen=True, slots=True)
class StreamingState:
    """Taking events from a stream."""

    stream: AsyncGenerator[WatchEvent, None]
    since_s: float


@dataclass(frozen=True, slots=True)
class PausingState:
    """WaitingState before the next attempt."""

    delay_s: float
    then: ListingState | ConnectingState


@dataclass(frozen=True, slots=True)
class WaitingState:
    """Held off by the breaker of the client, until that admits a request."""

    then: ListingState | ConnectingState


@dataclass(frozen=True, slots=True)
class StoppedState:
    """Nothing follows."""


WatchState: TypeAlias = ListingState | ConnectingState | StreamingState | PausingState | WaitingState | StoppedState


def state_name(state: WatchState) -> str:
    """The state as metrics, statistics and errors name it: `ListingState` is "listing"."""
    return type(state).__name__.removesuffix("State").lower()


@dataclass(frozen=True, slots=True)
class Transition:
    """Where to go, and why."""

    to: WatchState
    reason: WatchReason
    error: BaseException | None = None


# -- what it writes to -----------------------------------------------------------------------------


class Relist(Protocol):
    """A list that is being gathered; nothing of it is seen before `apply`."""

    def add(self, objects: Sequence[Object]) -> None: ...

    def apply(self, revision: Revision, *, asked_s: float) -> None:
        """Become the state at `revision`, all at once; it was asked for at `asked_s`."""


class Sink(Protocol):
    """Takes what the watcher is told. Everything here is synchronous: no reader sees half of a change."""

    relist_requested: asyncio.Event
    """Set by the sink when it needs a list; the watcher clears it when it begins one."""

    @property
    def revision(self) -> Revision:
        """Everything at or below it was told whole: where to resume."""

    @property
    def revision_seen(self) -> Revision:
        """The highest revision anything was seen at: no list may be older."""

    def begin_relist(self) -> Relist: ...

    def apply(self, event: WatchEvent) -> None: ...

    def progress(self, revision: Revision) -> None:
        """Everything at or below `revision` has been told."""

    def proof(self, revision: Revision, *, asked_s: float) -> None:
        """The authority was at `revision`, or past it, when it was asked."""

    def watcher_moved(self, state: WatchState, reason: WatchReason) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """Which objects of the kind. Empty means all."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    def __str__(self) -> str:
        parts = (self.namespace, self.label_selector, self.field_selector)
        return "" if not any(parts) else f"[{';'.join(parts)}]"
