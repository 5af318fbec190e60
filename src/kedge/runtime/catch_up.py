"""When a new leader may begin: its caches must have all that was written before the lease changed hands.

Controllers and schedulers wait here at the start of a term, on `runtime.cache`. Who leads, and with which fence, is
the business of `runtime.lease`; what to do with the caches is that of whoever waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import NO_REVISION, Revision
from kedge.runtime.cache import Behind, Cache


def is_caught_up(client: Client, cache: Cache, revision: Revision) -> bool:
    """Whether a cache is known, without a question, to have what was written before a fence moved at `revision`.

    Where each kind has a history of its own, the fence's revision says nothing of any other. `NO_REVISION` stands for
    no fence: then a cache that has listed will do.
    """
    return cache.reached(revision) and (client.one_history or revision == NO_REVISION)


async def wait_caught_up(
    client: Client, env: Env, cache: Cache, revision: Revision, *, closed: Callable[[], bool] = lambda: False
) -> None:
    """Wait until it is, for as long as that takes, or until `closed` says that nobody is interested any more.

    The lease has changed hands: whatever was written before that is there for whoever asks now.
    """
    asked = client.one_history or revision == NO_REVISION
    while not closed():
        try:
            await cache.wait_synced()
            if not asked:
                revision, asked = await cache.fresh_revision(), True
            await cache.at_least(revision)
            return
        except Behind:
            cache.request_relist()
        except OperatingError:  # it could not be asked, though the client has tried more than once
            await asyncio.sleep(jittered(env.limits.client_backoff_s_max, env.random))
