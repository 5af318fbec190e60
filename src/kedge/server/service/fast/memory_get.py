"""A get of an object whose newest version the store has in memory: the transport needs no task for it.

`reads.get` is the plain path, which waits for the store and for the version that a request names.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.requests import Get
from kedge.server.service.core import Core


def get_nowait(core: Core, request: Get) -> Object | None:
    """As `reads.get`, without suspending; None on any doubt, also for an object that does not exist."""
    if request.options.resource_version not in ("", "0"):
        return None
    reading = core.store.get_nowait((request.key,))
    if reading is None:
        return None
    (entry,) = reading.entries
    return None if entry is None else core.object_of(entry)
