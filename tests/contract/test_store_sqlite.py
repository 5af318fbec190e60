"""The SQLite store passes the conformance suite, check by check."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.kit.encryption import cipher_of

from kedge.env import Env
from kedge.store.conformance import MakeStore, check_names, check_store
from kedge.store.conformance.subject import KIND, OTHER_KIND
from kedge.store.contract import Store
from kedge.store.sqlite import SqliteStore


async def open_sqlite(directory: Path, name: str, env: Env) -> Store:
    return await SqliteStore.open(directory / f"{name}.db", env)


async def open_copy(backup: Path, directory: Path, name: str, env: Env) -> Store:
    shutil.copy(backup, directory / f"{name}.db")
    return await SqliteStore.open(directory / f"{name}.db", env)


async def backup_sqlite(directory: Path, store: Store) -> MakeStore:
    assert isinstance(store, SqliteStore)
    await store.backup(directory / "backup")
    return partial(open_copy, directory / "backup", directory)


@pytest.mark.parametrize("check", check_names(durable=True, backup=True))
def test_sqlite_store_keeps_the_contract(check: str, tmp_path: Path) -> None:
    make_store = partial(open_sqlite, tmp_path)
    asyncio.run(check_store(make_store, backup=partial(backup_sqlite, tmp_path), only=[check]))


async def open_encrypted(directory: Path, name: str, env: Env) -> Store:
    return await SqliteStore.open(directory / f"{name}.db", env, cipher=cipher_of(env, kinds=(KIND, OTHER_KIND)))


async def open_encrypted_copy(backup: Path, directory: Path, name: str, env: Env) -> Store:
    shutil.copy(backup, directory / f"{name}.db")
    return await open_encrypted(directory, name, env)


async def backup_encrypted(directory: Path, store: Store) -> MakeStore:
    assert isinstance(store, SqliteStore)
    await store.backup(directory / "backup")
    return partial(open_encrypted_copy, directory / "backup", directory)


@pytest.mark.parametrize("check", check_names(durable=True, backup=True))
def test_sqlite_store_keeps_the_contract_with_encrypted_values(check: str, tmp_path: Path) -> None:
    make_store = partial(open_encrypted, tmp_path)
    asyncio.run(check_store(make_store, backup=partial(backup_encrypted, tmp_path), only=[check]))
