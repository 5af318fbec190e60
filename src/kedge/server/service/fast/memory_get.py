"""A get of an object whose newest version the store has in memory: the transport needs no task for it.

`reads.get` is the plain path, which waits for the store, and for the version if a request names one.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.keys import Key
from kedge.server.service.core import Core


def get_nowait(core: Core, key: Key) -> Object | None:
    """As `reads.get`, without suspending; None on any doubt, also for an object that does not exist."""
    reading = core.store.get_nowait((key,))
    if reading is None:
        return None
    (entry,) = reading.entries
    return None if entry is None else core.object_of(entry)
