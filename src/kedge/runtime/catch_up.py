"""A new leader waits until its caches have everything that was committed before the lease changed its holder.

Controllers and schedulers wait here at the start of a term. `runtime.lease` elects the leader and sets the fence.
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
    """Whether a cache is known, without a request, to have everything committed before the fence moved at `revision`.

    Where each kind has a history of its own, the fence's revision cannot be compared with another kind's. `NO_REVISION`
    stands for no fence: then a cache that has listed is enough. State that handlers derive from it is current too.
    """
    return cache.reached(revision) and not cache.notifying and (client.one_history or revision == NO_REVISION)


async def wait_caught_up(
    client: Client, env: Env, cache: Cache, revision: Revision, *, closed: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the cache has caught up, for as long as that takes, or until `closed()`.

    The lease has changed its holder already: a read that begins now sees every earlier commit.
    """
    comparable = client.one_history or revision == NO_REVISION
    while not closed():
        try:
            await cache.wait_synced()
            if not comparable:
                revision, comparable = await cache.fresh_revision(), True
            await cache.at_least(revision)
            if cache.notifying:
                await cache.wait_notified()
            return
        except Behind:
            cache.request_relist()
        except OperatingError:  # the revision could not be read, after the retries of the client
            await asyncio.sleep(jittered(env.limits.client_backoff_s_max, env.random))
