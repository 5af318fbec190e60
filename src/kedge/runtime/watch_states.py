"""The states of a watcher, the reasons for its transitions, and the protocol of its sink. Data only.

`runtime.watcher` is the state machine; `runtime.cache` implements the sink.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
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
    """The breaker of the client is open: no request was sent."""
    ENDED = "ended"
    """The server ended the stream, as servers do now and then."""
    UNAVAILABLE = "unavailable"
    LAGGED = "lagged"
    COMPACTED = "compacted"
    REFUSED = "refused"
    """The server rejected the request."""
    SILENT = "silent"
    """Nothing arrived for too long."""
    BEHIND = "behind"
    """The stream is behind the revision of the last probe."""
    OLDER = "older"
    """A list was older than an earlier event or list: another server, which lags."""
    TORN = "torn"
    """The pages of a list were not of one revision."""
    ASKED = "asked"
    """A reader requested a relist."""
    RESYNC = "resync"
    """The periodic list: a stream may have lost an event without an error."""
    FAILED = "failed"
    """An unexpected error. It was reported."""
    STOPPED = "stopped"


# -- states ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListingState:
    """Reading everything, in pages."""

    whole: bool = False
    """Without pages: pages were lost to compaction before."""


@dataclass(frozen=True, slots=True)
class ConnectingState:
    """Opening a stream after a revision."""

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
    """Waiting until the breaker of the client admits a request."""

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
    """The next state, and why."""

    to: WatchState
    reason: WatchReason
    error: BaseException | None = None


# -- the sink --------------------------------------------------------------------------------------


class Relist(Protocol):
    """A list that is being gathered; readers see nothing of it before `apply`."""

    def add(self, objects: Sequence[Object]) -> None: ...

    def find_deletions(self, revision: Revision) -> Iterator[None]:
        """Find the objects that the list lacks, in parts; other tasks may run between two."""

    def apply(self, revision: Revision, *, asked_s: float) -> None:
        """Become the state at `revision`, in one step; the list was requested at `asked_s`."""


class Sink(Protocol):
    """Receives lists and events. Everything is synchronous: no reader sees half of a change."""

    relist_requested: asyncio.Event
    """Set by the sink when it needs a list; the watcher clears it when it begins one."""

    @property
    def revision(self) -> Revision:
        """Everything at or below it has arrived: where to resume."""

    @property
    def revision_seen(self) -> Revision:
        """The highest revision of any event or list: no later list may be older."""

    @property
    def notifying(self) -> bool:
        """Whether handlers have not yet been called for all that the sink has."""

    async def wait_notified(self) -> None:
        """Wait until they have been."""

    def begin_relist(self) -> Relist: ...

    def apply(self, event: WatchEvent) -> None: ...

    def progress(self, revision: Revision) -> None:
        """A bookmark: every event at or below `revision` has arrived."""

    def proof(self, revision: Revision, *, asked_s: float) -> None:
        """The store was at `revision` or past it at `asked_s`."""

    def watcher_moved(self, state: WatchState, reason: WatchReason) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """The part of a kind that is followed. Empty means all."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    def __str__(self) -> str:
        parts = (self.namespace, self.label_selector, self.field_selector)
        return "" if not any(parts) else f"[{';'.join(parts)}]"
