"""One compactor among several API servers: each tries periodically, one at a time wins.

The turn is a key that is taken by compare-and-swap, so a dead server needs no successor: the next to try takes it. The
compacted revision was the newest one `Limits.history_s` ago.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kedge.backoff import jittered
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import NO_REVISION, Revision
from kedge.store.etcd.layout import Layout
from kedge.store.etcd.transactions import plan_compaction_turn
from kedge.store.etcd.transport import TXN, EtcdTransport, RevisionError

if TYPE_CHECKING:
    from kedge.store.etcd.store import EtcdStore

_log = logging.getLogger(__name__)


async def compact_periodically(store: EtcdStore, transport: EtcdTransport, layout: Layout, env: Env) -> None:
    """Run until cancelled."""
    turn, then, incarnation = 0, NO_REVISION, store.incarnation
    while True:
        # Jitter, so that the servers do not try at the same time.
        await asyncio.sleep(jittered(env.limits.history_s, env.random, (1.0, 1.1)))
        try:
            now: Revision = await store.revision()
            response = await transport.send_once(TXN, plan_compaction_turn(layout, turn))
            if store.incarnation != incarnation:
                then, incarnation = NO_REVISION, store.incarnation
            elif response.succeeded and then:
                await store.compact(then)
            elif then:
                store.drop_history(then)  # the server with the turn compacts etcd; every server drops its own history
            if response.succeeded:
                turn = response.header.revision
            else:
                turn = next((kv.mod_revision for kv in response.responses[0].response_range.kvs), 0)
            then = now
        except (OperatingError, RevisionError) as error:
            _log.warning("history was not compacted; the next turn tries again: %s", error)
