"""The etcd store passes the conformance suite, check by check, on a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest
from tests.etcd_server import EtcdServer, etcd_server, restored_server, save_snapshot, wheel_etcd
from tests.kit.encryption import cipher_of
from tests.tools import missing_tool

from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.store.conformance import MakeStore, check_names, check_store
from kedge.store.conformance.subject import KIND, OTHER_KIND
from kedge.store.contract import DeleteKey, Put, Store
from kedge.store.etcd import EtcdStore


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    binary = wheel_etcd() or missing_tool("etcd", install="make venv")
    with etcd_server(binary, "--unsafe-no-fsync") as running:
        yield running


RESTORED: dict[str, tuple[str, str]] = {}
"""The server of each store that was opened from a backup: it keeps its prefix."""


async def open_etcd(endpoint: str, name: str, env: Env) -> Store:
    endpoint, prefix = RESTORED.get(name, (endpoint, f"/{name}"))
    return await EtcdStore.open([endpoint], env, prefix=prefix)


async def open_encrypted(endpoint: str, name: str, env: Env) -> Store:
    cipher = cipher_of(env, kinds=(KIND, OTHER_KIND))
    return await EtcdStore.open([endpoint], env, prefix=f"/encrypted-{name}", cipher=cipher)


@pytest.mark.parametrize("check", check_names(shared=True))
def test_etcd_store_keeps_the_contract_with_encrypted_values(check: str, server: EtcdServer) -> None:
    asyncio.run(check_store(partial(open_encrypted, server.endpoint), shared=True, only=[check]))


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


def test_a_large_list_is_read_in_pages_at_one_revision(server: EtcdServer) -> None:
    async def run_test() -> None:
        limits = replace(Limits(), store_page_objects_max=7, store_page_bytes_max=600)
        store = await EtcdStore.open([server.endpoint], system_env(limits=limits), prefix="/pages", compactor=False)
        try:
            keys = [Key("Pod", "ns", f"{number:03}") for number in range(60)]
            for first in range(0, 60, 20):
                await store.commit([], [Put(key, b"x" * 50) for key in keys[first : first + 20]])
            stop = asyncio.Event()

            async def disturb() -> None:
                while not stop.is_set():
                    await store.commit([], [DeleteKey(keys[-1]), Put(Key("Pod", "ns", "zzz"), b"")])
                    await store.commit([], [Put(keys[-1], b""), DeleteKey(Key("Pod", "ns", "zzz"))])

            disturbing = asyncio.ensure_future(disturb())
            for _ in range(5):
                listing = await store.list("Pod")
                whole = await store.list("Pod", at=listing.revision)
                assert listing == whole
                assert len(listing.entries) == 60
                part = await store.list("Pod", at=listing.revision, start_after=keys[9], limit=20)
                assert part == (whole.entries[10:30], listing.revision, 30)
            stop.set()
            await disturbing
        finally:
            await store.close()

    asyncio.run(run_test())


def test_many_keys_are_read_at_one_revision(server: EtcdServer) -> None:
    async def run_test() -> None:
        store = await EtcdStore.open([server.endpoint], system_env(), prefix="/many", compactor=False)
        try:
            keys = [Key("Pod", "ns", f"{number:03}") for number in range(100)]
            stop = asyncio.Event()
            await store.commit([], [Put(key, b"0") for key in keys])

            async def disturb() -> None:
                for number in itertools.count(1):
                    await store.commit([], [Put(key, b"%d" % number) for key in keys])
                    if stop.is_set():
                        return

            disturbing = asyncio.ensure_future(disturb())
            for _ in range(10):
                reading = await store.get([*keys, Key("Pod", "ns", "absent")])
                assert reading.entries[-1] is None
                assert len({entry.value for entry in reading.entries if entry is not None}) == 1
            stop.set()
            await disturbing
        finally:
            await store.close()

    asyncio.run(run_test())
