"""Expired Events: those that have not occurred for `Limits.event_ttl_s` are deleted, as Kubernetes does with a lease.

Several servers may sweep one store: each delete proves the version that it has seen.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from kedge.api.wellknown import EVENT_KIND
from kedge.server.service.core import Core
from kedge.store import Entry


class _EventSeries(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: datetime | None = None


class _EventMetadata(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: datetime | None = None


class _EventTimes(msgspec.Struct, frozen=True, rename="camel"):
    """The times of an Event: old clients write some of them, new ones the others."""

    metadata: _EventMetadata = _EventMetadata()
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: _EventSeries | None = None

    @property
    def latest(self) -> datetime | None:
        series = self.series.last_observed_time if self.series is not None else None
        known = (self.last_timestamp, self.event_time, series, self.metadata.creation_timestamp)
        return max((each for each in known if each is not None), default=None)


_DECODER = msgspec.json.Decoder(_EventTimes)


async def sweep_events(core: Core) -> int:
    """Delete expired Events. Returns how many."""
    before = core.env.now() - timedelta(seconds=core.env.limits.event_ttl_s)
    listing = await core.store.list(EVENT_KIND)
    swept = await core.delete_all([each for each in listing.entries if _is_older(each, before)])
    core.events_expired.inc(swept)
    return swept


def _is_older(entry: Entry, before: datetime) -> bool:
    try:
        latest = _DECODER.decode(entry.value).latest
    except msgspec.MsgspecError:
        return False  # a form that this build does not know
    return latest is not None and latest < before
