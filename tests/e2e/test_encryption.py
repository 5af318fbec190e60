"""Secrets at rest as an operator has them: `--encryption-keys`, SIGHUP and `kedge secrets rotate`, on both stores."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.etcd_server import EtcdServer, etcd_server, wheel_etcd
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.encryption import PLANTED, files_with, write_keys
from tests.tools import missing_tool


def kedge(*arguments: object, check: bool = True) -> str:
    """Run a command; returns what it printed."""
    command = [sys.executable, "-m", "kedge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == check, done.stdout + done.stderr
    return done.stdout + done.stderr


def plant(server: ServerProcess, name: str = "planted") -> None:
    server.kubectl("create", "secret", "generic", name, f"--from-literal=password={PLANTED}")
    server.kubectl("label", "secret", name, "tier=hidden")


def value_of(server: ServerProcess, name: str = "planted") -> str:
    found = json.loads(server.kubectl("get", "secrets", "-l", "tier=hidden", "-o", "json"))["items"]
    (secret,) = [each for each in found if each["metadata"]["name"] == name]
    return base64.b64decode(secret["data"]["password"]).decode()


def hang_up(server: ServerProcess, text: str) -> None:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGHUP)
    deadline_s = time.monotonic() + 30
    while text not in server.log:
        assert time.monotonic() < deadline_s, server.log
        time.sleep(0.05)


def refusal(state: Path, *options: str) -> str:
    return kedge("server", "--state", state, "--listen", "127.0.0.1:0", *options, check=False)


def test_keys_are_made_rotated_and_removed(tmp_path: Path) -> None:
    keys, state = tmp_path / "keys.yaml", tmp_path / "state"
    assert "key key-1" in kedge("secrets", "add-key", keys)
    with running_server(state, "--encryption-keys", str(keys)) as server:
        plant(server)
        kedge("backup", tmp_path / "first.backup", "--state", state)
        assert not files_with(tmp_path, PLANTED)
        assert "key key-2" in kedge("secrets", "add-key", keys)
        hang_up(server, "key-2 writes")
        assert "with key-2; remove key-1" in kedge("secrets", "rotate", "--kubeconfig", server.kubeconfig)
        assert value_of(server) == PLANTED
        old = write_only(keys, tmp_path / "old.yaml", "key-1")
        write_only(keys, keys, "key-2")
        hang_up(server, "key-2 writes")
        assert server.stop() == 0
    assert "key-2" in refusal(state), "a server without keys names the key"
    assert "key-2" in refusal(state, "--encryption-keys", str(old))
    with running_server(state, "--encryption-keys", str(keys)) as server:
        assert value_of(server) == PLANTED
    kedge("restore", tmp_path / "first.backup", "--state", tmp_path / "restored")
    same = ("--pki", str(state))
    assert "key-1" in refusal(tmp_path / "restored", "--encryption-keys", str(keys), *same)
    with running_server(tmp_path / "restored", "--encryption-keys", str(old), *same) as server:
        assert value_of(server) == PLANTED
    assert not files_with(tmp_path, PLANTED)


def write_only(source: Path, target: Path, name: str) -> Path:
    """A key file with one key of another."""
    document = yaml.safe_load(source.read_text())
    document["keys"] = [each for each in document["keys"] if each["name"] == name]
    target.touch(0o600)
    target.write_text(yaml.safe_dump(document))
    return target


def test_a_rotation_needs_an_administrator(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        refused = server.kubectl(
            "create", "--raw", "/kedge/rotate-encryption-keys", "-f", "-", "--as", "someone", stdin="{}", check=False
        )
        assert "forbidden" in refused.lower()
        assert "identity" in kedge("secrets", "rotate", "--kubeconfig", server.kubeconfig)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server(wheel_etcd() or missing_tool("etcd", install="make venv"), "--unsafe-no-fsync") as running:
        yield running


def test_servers_on_one_etcd_agree_on_the_keys(etcd: EtcdServer, tmp_path: Path) -> None:
    """A server whose keys differ does not start; one that knows both keys follows the other to the new one."""
    on = ("--store", f"etcd://{etcd.endpoint}", "--etcd-prefix", "/agreed", "--pki", str(tmp_path / "pki"))
    first, second = write_keys(tmp_path / "1.yaml", "key-1"), write_keys(tmp_path / "2.yaml", "key-1", "key-2")
    with running_server(tmp_path / "one", *on, "--encryption-keys", str(first)) as one:
        plant(one)
        assert not files_with(etcd.folder, PLANTED)
        assert "key-1" in refusal(tmp_path / "other", *on)
        wrong = write_keys(tmp_path / "wrong.yaml", "key-1", salt="other")
        assert "is not the key key-1 of the store" in refusal(tmp_path / "other", *on, "--encryption-keys", str(wrong))
        with running_server(tmp_path / "two", *on, "--encryption-keys", str(second)) as two:
            assert value_of(two) == PLANTED
            write_keys(first, "key-2", "key-1")
            hang_up(one, "key-2 writes")
            plant(two, "later")  # with key-2 from now on: the record in the store has moved
            assert value_of(one, "later") == PLANTED
            assert "with key-2; remove key-1" in kedge("secrets", "rotate", "--kubeconfig", one.kubeconfig)
            plant(two, "last")
            assert value_of(two, "last") == PLANTED
    only = write_keys(tmp_path / "3.yaml", "key-2")
    with running_server(tmp_path / "one", *on, "--encryption-keys", str(only)) as one:
        assert [value_of(one, name) for name in ("planted", "later", "last")] == [PLANTED] * 3
    assert not files_with(etcd.folder, PLANTED)
