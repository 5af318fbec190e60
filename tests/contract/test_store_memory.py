"""The memory store passes the conformance suite, check by check."""

from __future__ import annotations

import asyncio

import pytest

from kedge.env import Env
from kedge.store.conformance import MakeStore, check_names, check_store
from kedge.store.contract import Store
from kedge.store.memory import MemoryStore


async def open_memory(name: str, env: Env) -> Store:
    del name  # a memory store is not durable, so every name is new
    return MemoryStore(env)


async def backup_memory(store: Store) -> MakeStore:
    assert isinstance(store, MemoryStore)
    backup = store.backup()

    async def open_copy(name: str, env: Env) -> Store:
        del name
        return MemoryStore(env, backup=backup)

    return open_copy


@pytest.mark.parametrize("check", check_names(durable=False, backup=True))
def test_memory_store_keeps_the_contract(check: str) -> None:
    asyncio.run(check_store(open_memory, durable=False, backup=backup_memory, only=[check]))
