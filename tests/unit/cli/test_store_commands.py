"""`kedge store check` and `kedge store salvage`: exit codes, both outputs, and ledgers and quotas that disagree."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.store.sqlite_faults import env_with

from kedge.api.kinds import KINDS
from kedge.api.requests import Binding
from kedge.cli import main
from kedge.keys import Key
from kedge.server.service import Service
from kedge.store.contract import Put
from kedge.store.sqlite import SqliteStore

LEDGER = Key("NodeAllocation.kedge.dev", "", "n")


def kedge(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


async def fill(path: Path) -> None:
    """A node with one bound pod, counted by a quota."""
    store = await SqliteStore.open(path, env_with())
    service = Service(store, env_with())

    def kind(name: str) -> Any:
        return KINDS.of_key_kind(name)

    await service.create(kind("Namespace"), {"metadata": {"name": "default"}})
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "9", "requests.cpu": "9"}}}
    await service.create(kind("ResourceQuota"), quota)
    room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    await service.create(kind("Node"), {"metadata": {"name": "n"}, "status": {"allocatable": room}})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [container]}}
    made = await service.create(kind("Pod"), pod)
    await service.bind(Binding(pod=Key("Pod", "default", "p"), pod_uid=made.object.uid, node="n"))
    await store.close()


async def rewrite(path: Path, key: Key, old: bytes, new: bytes) -> None:
    """Change an object as a bug would: in the store, with a sound checksum."""
    store = await SqliteStore.open(path, env_with())
    (entry,) = (await store.get([key])).entries
    assert entry is not None
    assert old in entry.value
    await store.commit([], [Put(key, entry.value.replace(old, new))])
    await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "kedge.db"))
    return tmp_path / "kedge.db"


def damage(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE versions SET value = 'x' WHERE kind = 'Node'")
    db.commit()
    db.close()


def test_a_sound_store_is_checked_and_salvaged_whole(path: Path, tmp_path: Path) -> None:
    checked, salvaged = kedge("store", "check", path), kedge("store", "salvage", path, tmp_path / "out.db")
    assert (checked.exit_code, salvaged.exit_code) == (0, 0), checked.output + salvaged.output
    assert checked.output.endswith("versions: sound\n")
    assert kedge("store", "check", tmp_path / "out.db").exit_code == 0


def test_damage_is_listed_in_text_and_json(path: Path, tmp_path: Path) -> None:
    damage(path)
    shown = kedge("store", "check", path)
    assert shown.exit_code == 3
    assert "versions: the version of Node//n at revision" in shown.output
    found = kedge("store", "salvage", path, tmp_path / "out.db", "-o", "json")
    assert found.exit_code == 3
    document = json.loads(found.stdout)
    assert document["file"] == str(tmp_path / "out.db")
    assert {each["part"] for each in document["findings"]} == {"versions"}
    assert "Node//n" in document["findings"][0]["what"]


def test_salvage_replaces_nothing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "out.db").write_bytes(b"mine")
    refused = kedge("store", "salvage", path, tmp_path / "out.db")
    assert refused.exit_code == 1
    assert "exists" in refused.output
    assert (tmp_path / "out.db").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("key", "old", "new", "finding"),
    [
        (LEDGER, b'"allocated":{"cpu":"1"', b'"allocated":{"cpu":"2"', "ledgers: the ledger of n"),
        (Key("Pod", "default", "p"), b'"nodeName":"n"', b'"nodeName":"m"', "ledgers: pod default/p is bound to m"),
        (Key("ResourceQuota", "default", "q"), b'"pods":"1"', b'"pods":"2"', "quotas: "),
    ],
)  # fmt: skip
def test_ledgers_and_quotas_that_disagree_are_listed(
    key: Key, old: bytes, new: bytes, finding: str, path: Path
) -> None:
    asyncio.run(rewrite(path, key, old, new))
    shown = kedge("store", "check", path)
    assert shown.exit_code == 3, shown.output
    assert finding in shown.output
