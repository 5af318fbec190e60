"""Keeps the `default` ServiceAccount of every namespace: one that is deleted is made again.

A new namespace has it from its own commit on. Every API server follows the accounts; the name is fixed, so servers on
one store make one account.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from kedge.api.requests import Create
from kedge.api.wellknown import DEFAULT_ACCOUNT, NAMESPACE_KIND, SERVICE_ACCOUNT_KIND
from kedge.errors import AlreadyExists, Forbidden, NotFound, OperatingError
from kedge.logs import WARNING
from kedge.server.service import writes
from kedge.server.service.core import Core

_RETRY_S: Final = 5.0


async def ensure_default_account(core: Core, namespace: str) -> None:
    """Create the account. Raises `NotFound` or `Forbidden` if the namespace is gone or being deleted."""
    kind = core.kinds.of_key_kind(SERVICE_ACCOUNT_KIND)
    with suppress(AlreadyExists):
        await writes.create(core, Create(kind, {"metadata": {"name": DEFAULT_ACCOUNT}}, namespace))
        core.accounts_restored.inc()


async def keep_default_accounts(core: Core) -> None:
    """Create accounts that are missing, now and after each deletion, for ever."""
    while True:
        try:
            await _follow(core)
        except OperatingError as error:
            core.env.log.write(WARNING, "default accounts not followed", {"error": error.message})
        await asyncio.sleep(_RETRY_S)


async def _follow(core: Core) -> None:
    namespaces = await core.store.list(NAMESPACE_KIND)
    accounts = await core.store.list(SERVICE_ACCOUNT_KIND)
    watch = await core.store.watch(SERVICE_ACCOUNT_KIND, after=accounts.revision)
    try:
        present = {each.key.namespace for each in accounts.entries if each.key.name == DEFAULT_ACCOUNT}
        for each in namespaces.entries:
            if each.key.name not in present:
                await _restore(core, each.key.name)
        async for batch in watch:
            for change in batch.changes:
                if change.entry is None and change.key.name == DEFAULT_ACCOUNT:
                    await _restore(core, change.key.namespace)
    finally:
        watch.close()


async def _restore(core: Core, namespace: str) -> None:
    with suppress(NotFound, Forbidden):  # the account goes with its namespace
        await ensure_default_account(core, namespace)
