"""`kedge backup` and `kedge restore` as an operator runs them: on SQLite and etcd, on servers that run or do not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd_server import EtcdServer, etcd_server, etcdctl, wheel_etcd
from tests.kit.api_server import ServerProcess, running_server
from tests.tools import missing_tool

from kedge.env import system_env
from kedge.errors import Compacted, Misconfigured, Terminal
from kedge.keys import Key, Origin
from kedge.store.backup import check_backup, read_backup, read_backup_head
from kedge.store.contract import RESTORE_BUMP, Entry, Put
from kedge.store.etcd import EtcdStore, restore_to_etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server(wheel_etcd() or missing_tool("etcd", install="make venv"), "--unsafe-no-fsync") as running:
        yield running


def kedge(*arguments: object, check: bool = True) -> str:
    """Run a command; returns what it printed on stderr."""
    command = [sys.executable, "-m", "kedge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == check, done.stderr
    return done.stderr


def fill(server: ServerProcess) -> None:
    for number in range(5):
        server.kubectl("create", "configmap", f"kept-{number}", f"--from-literal=number={number}")
    server.kubectl("create", "secret", "generic", "kept", "--from-literal=password=p")


def objects(server: ServerProcess) -> dict[str, object]:
    """Everything that a client sees of the objects, but the revision."""
    listed = json.loads(server.kubectl("get", "configmaps,secrets,namespaces", "-A", "-o", "json"))["items"]
    for each in listed:
        del each["metadata"]["resourceVersion"]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in listed}


def revision_of(server: ServerProcess) -> int:
    return int(json.loads(server.kubectl("get", "--raw", "/api/v1/configmaps"))["metadata"]["resourceVersion"])


def keys_in(folder: Path) -> tuple[str, str]:
    """The keys of a server are not in its backup: the restored one is given them."""
    return "--pki", str(folder / "pki")


def test_a_running_server_is_backed_up_and_the_restored_one_is_far_ahead(tmp_path: Path) -> None:
    file = tmp_path / "cluster.backup"
    with running_server(tmp_path / "first", *keys_in(tmp_path)) as server:
        fill(server)
        before, seen = objects(server), revision_of(server)
        kedge("backup", file, "--state", server.state)
        server.kubectl("create", "configmap", "after")
    assert check_backup(file).objects >= len(before)
    assert file.stat().st_mode & 0o777 == 0o600
    kedge("restore", file, "--state", tmp_path / "second")
    with running_server(tmp_path / "second", *keys_in(tmp_path)) as server:
        assert objects(server) == before
        assert revision_of(server) >= read_backup_head(file).revision + RESTORE_BUMP > seen
        refused = server.kubectl("get", "--raw", f"/api/v1/configmaps?watch=1&resourceVersion={seen}", check=False)
        assert "410" in refused or "Expired" in refused or "compacted" in refused or "no longer" in refused
        server.kubectl("create", "configmap", "new")


def test_a_stopped_server_is_backed_up_from_its_folder(tmp_path: Path) -> None:
    with running_server(tmp_path / "first", *keys_in(tmp_path)) as server:
        fill(server)
        before = objects(server)
    kedge("backup", tmp_path / "cluster.backup", "--state", tmp_path / "first")
    kedge("restore", tmp_path / "cluster.backup", "--state", tmp_path / "second")
    with running_server(tmp_path / "second", *keys_in(tmp_path)) as server:
        assert objects(server) == before


def test_a_cluster_moves_from_sqlite_to_etcd_and_back(etcd: EtcdServer, tmp_path: Path) -> None:
    with running_server(tmp_path / "first", *keys_in(tmp_path)) as server:
        fill(server)
        before = objects(server)
        kedge("backup", tmp_path / "1.backup", "--kubeconfig", server.kubeconfig)
    store = ("--store", f"etcd://{etcd.endpoint}", "--etcd-prefix", "/moved")
    kedge("restore", tmp_path / "1.backup", *store)
    with running_server(tmp_path / "on-etcd", *store, *keys_in(tmp_path)) as server:
        assert objects(server) == before
        assert revision_of(server) > read_backup_head(tmp_path / "1.backup").revision + RESTORE_BUMP
        kedge("backup", tmp_path / "2.backup", *store)
        kedge("backup", tmp_path / "3.backup", "--kubeconfig", server.kubeconfig)
    kedge("restore", tmp_path / "2.backup", "--state", tmp_path / "back")
    with running_server(tmp_path / "back", *keys_in(tmp_path)) as server:
        assert objects(server) == before


def test_nothing_is_overwritten(etcd: EtcdServer, tmp_path: Path) -> None:
    store = ("--store", f"etcd://{etcd.endpoint}", "--etcd-prefix", "/taken")
    with running_server(tmp_path / "state"):
        kedge("backup", tmp_path / "file", "--state", tmp_path / "state")
    kept = (tmp_path / "file").read_bytes()
    assert "exists" in kedge("backup", tmp_path / "file", "--state", tmp_path / "state", check=False)
    assert (tmp_path / "file").read_bytes() == kept
    database = (tmp_path / "state" / "kedge.db").read_bytes()
    assert "exists" in kedge("restore", tmp_path / "file", "--state", tmp_path / "state", check=False)
    assert (tmp_path / "state" / "kedge.db").read_bytes() == database
    kedge("restore", tmp_path / "file", *store)
    assert "has a store already" in kedge("restore", tmp_path / "file", *store, check=False)
    etcdctl(etcd, "put", "/others/key", "value")
    others = ("--store", f"etcd://{etcd.endpoint}", "--etcd-prefix", "/others")
    assert "keys of another program" in kedge("restore", tmp_path / "file", *others, check=False)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"file", "state", "state.log"}, "a temporary file is left"


@pytest.mark.parametrize("damage", ["cut", "flipped", "extended", "empty"])
def test_a_damaged_backup_is_refused_before_anything_is_written(damage: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        fill(server)
        kedge("backup", tmp_path / "file", "--state", server.state)
    data = bytearray((tmp_path / "file").read_bytes())
    match damage:
        case "cut":
            del data[-20:]
        case "flipped":
            data[len(data) // 2] ^= 1
        case "extended":
            data += b"more"
        case "empty":
            data.clear()
    (tmp_path / "damaged").write_bytes(data)
    assert "Error" in kedge("restore", tmp_path / "damaged", "--state", tmp_path / "new", check=False)
    assert not list((tmp_path / "new").glob("*"))


def entries(count: int) -> list[Entry]:
    keys = [Key("Thing.backup", "ns", f"{number:04}") for number in range(count)]
    return [Entry(key, b"x" * 10, n + 1, n + 5, Origin(f"op-{n}", "")) for n, key in enumerate(keys)]


def test_a_killed_restore_to_etcd_cannot_be_opened_and_can_be_repeated(etcd: EtcdServer) -> None:
    """No server opens half a store: the prefix is marked until the last step."""

    async def run() -> None:
        env = system_env()

        class Killed(BaseException):
            pass

        def kill_at_200(count: int) -> None:
            if count >= 200:
                raise Killed

        arguments = ([etcd.endpoint], env, entries(300), 500)
        with pytest.raises(Killed):
            await restore_to_etcd(*arguments, prefix="/killed", progress=kill_at_200)
        with pytest.raises(Misconfigured, match="not finished"):
            await EtcdStore.open([etcd.endpoint], env, prefix="/killed")
        total = await restore_to_etcd(*arguments, prefix="/killed", progress=lambda _: None)
        assert total.objects == 300
        store = await EtcdStore.open([etcd.endpoint], env, prefix="/killed", compactor=False)
        try:
            listing = await store.list("Thing.backup")
            assert listing.revision > 500 + RESTORE_BUMP
            assert [(each.key, each.value, each.origin) for each in listing.entries] == [
                (each.key, each.value, each.origin) for each in entries(300)
            ]
            created = [each.created for each in listing.entries]
            assert created == sorted(set(created)), "the order of creation is kept"
            with pytest.raises(Compacted):
                await store.watch("Thing.backup", after=500)
            await store.commit([], [Put(Key("Thing.backup", "ns", "new"), b"")])
            export = await store.export()
            assert sum([len(part) async for part in export.slices]) == 301
        finally:
            await store.close()

    asyncio.run(run())


def test_a_backup_is_one_revision_while_writes_go_on(tmp_path: Path) -> None:
    """Two objects that always change together are equal in every backup."""
    with running_server(tmp_path / "state") as server:
        server.kubectl("create", "configmap", "last", "--from-literal=n=0")
        program = (
            "import subprocess, sys\n"
            "for n in range(1, 1000):\n"
            "    subprocess.run(['kubectl', 'create', 'configmap', f'n-{n:04}'], check=True, capture_output=True)\n"
        )
        with server.started(sys.executable, "-c", program):
            for number in range(3):
                kedge("backup", tmp_path / f"{number}.backup", "--state", server.state)
        for number in range(3):
            names = [
                each.key.name
                for part in read_backup(tmp_path / f"{number}.backup")
                for each in part
                if each.key.name.startswith("n-")
            ]
            expected = [f"n-{n:04}" for n in range(1, len(names) + 1)]
            assert sorted(names) == expected, "a later object is there without an earlier one"


def test_a_backup_needs_an_administrator(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        refused = server.kubectl("get", "--raw", "/kedge/backup", "--as", "someone", check=False)
        assert 'User "someone" cannot get path "/kedge/backup"' in refused


def test_something_else_is_not_a_backup(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(Terminal):
        check_backup(tmp_path / "text")
    assert "is not" in kedge("restore", tmp_path / "text", "--state", tmp_path / "new", check=False)
    assert "Error" in kedge("backup", tmp_path / "b", "--state", tmp_path / "absent", check=False)
    assert not (tmp_path / "absent").exists()
