"""The etcd store passes the conformance suite, check by check, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from tests.etcd_server import EtcdServer, etcd_server, restored_server, save_snapshot, wheel_etcd
from tests.tools import missing_tool

from kedge.env import Env
from kedge.store.conformance import MakeStore, check_names, check_store
from kedge.store.contract import Store
from kedge.store.etcd import EtcdStore


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    binary = wheel_etcd() or missing_tool("etcd", install="make venv")
    with etcd_server(binary, "--unsafe-no-fsync") as running:
        yield running


RESTORED: dict[str, tuple[str, str]] = {}
"""Where a store lives that was opened from a backup: it keeps its prefix on another server."""


async def open_etcd(endpoint: str, name: str, env: Env) -> Store:
    endpoint, prefix = RESTORED.get(name, (endpoint, f"/{name}"))
    return await EtcdStore.open([endpoint], env, prefix=prefix)


@pytest.mark.parametrize("check", check_names(shared=True, backup=True))
def test_etcd_store_keeps_the_contract(check: str, server: EtcdServer) -> None:
    with ExitStack() as stack:

        async def backup(store: Store) -> MakeStore:
            assert isinstance(store, EtcdStore)
            prefix = store._layout.start.decode().rstrip("/")
            snapshot = server.folder / f"{check}.snapshot"
            save_snapshot(server, snapshot)
            restored = stack.enter_context(restored_server(server, snapshot))

            async def open_copy(name: str, env: Env) -> Store:
                RESTORED[name] = (restored.endpoint, prefix)
                return await open_etcd(restored.endpoint, name, env)

            return open_copy

        make_store = partial(open_etcd, server.endpoint)
        asyncio.run(check_store(make_store, shared=True, backup=backup, only=[check]))
