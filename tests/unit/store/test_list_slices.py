"""A long list of the SQLite store is read in slices, and is at one revision all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.kit.loops import on_loop

from kedge.env import system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.store import DeleteKey, Put
from kedge.store.sqlite import SqliteStore


def key(number: int) -> Key:
    return Key("ConfigMap", "default", f"c{number:02}")


@pytest.mark.parametrize("limit", [0, 3, 4, 7, 50])
@on_loop
async def test_a_list_in_slices_is_that_of_its_revision(limit: int, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store", system_env(limits=Limits(list_page_max=3)))
    revision = await store.commit([], [Put(key(n), b"old") for n in range(10)])
    listing = asyncio.ensure_future(store.list("ConfigMap", limit=limit))
    await asyncio.sleep(0)  # the first slice is read
    await store.commit([], [Put(key(8), b"new"), DeleteKey(key(9)), Put(key(10), b"new")])
    found = await listing
    count = min(limit or 10, 10)
    assert [(each.key, each.value) for each in found.entries] == [(key(n), b"old") for n in range(count)]
    assert (found.revision, found.remaining) == (revision, 10 - count)
    assert len((await store.list("ConfigMap")).entries) == 10
    await store.close()


@on_loop
async def test_the_loop_continues_between_the_slices_of_a_list(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store", system_env(limits=Limits(list_page_max=3)))
    await store.commit([], [Put(key(n), b"old") for n in range(10)])
    listing = asyncio.ensure_future(store.list("ConfigMap"))
    turns = 0
    while not listing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 4
    await store.close()
