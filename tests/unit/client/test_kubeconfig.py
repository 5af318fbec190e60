"""Kubeconfig files: contexts, and several files as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kedge.client.http import read_kubeconfig
from kedge.errors import Terminal


def context(name: str, cluster: str, user: str = "", namespace: str = "") -> dict[str, Any]:
    return {"name": name, "context": {"cluster": cluster, "user": user or cluster, "namespace": namespace}}


def written(path: Path, *, clusters: dict[str, str], users: dict[str, str], **rest: Any) -> Path:
    config = {
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters.items()],
        "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
        **rest,
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    first = written(
        tmp_path / "first",
        clusters={"a": "http://a:1", "b": "http://first-b:1"},
        users={"a": "token-a"},
        contexts=[context("in-a", "a", namespace="space-a"), context("mixed", "a", user="b")],
    )
    second = written(
        tmp_path / "second",
        clusters={"b": "http://second-b:2", "c": "http://c:3"},
        users={"a": "token-of-second", "b": "token-b", "c": "token-c"},
        contexts=[context("in-a", "c"), context("in-b", "b"), context("in-c", "c")],
        **{"current-context": "in-c"},
    )
    return first, second


@pytest.mark.parametrize(
    ("chosen", "host", "token", "namespace"),
    [
        ("in-a", "a", "token-a", "space-a"),
        ("in-b", "first-b", "token-b", "default"),
        ("mixed", "a", "token-b", "default"),
        ("", "c", "token-c", "default"),
    ],
)
def test_the_first_file_with_an_entry_wins(
    files: tuple[Path, Path], chosen: str, host: str, token: str, namespace: str
) -> None:
    found = read_kubeconfig(*files, context=chosen)
    assert (found.host, found.token, found.namespace) == (host, token, namespace)


def test_a_later_file_alone_has_its_own_entries(files: tuple[Path, Path]) -> None:
    assert read_kubeconfig(files[1], context="in-a").host == "c"
    with pytest.raises(Terminal, match="first has no entry '' in contexts: name one that it has with --context"):
        read_kubeconfig(files[0])


def test_a_file_that_is_no_kubeconfig_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("just words")
    with pytest.raises(Terminal, match="broken is not a kubeconfig"):
        read_kubeconfig(files[1], tmp_path / "broken")


def test_certificates_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    first = written(near / "config", clusters={}, users={"b": ""}, contexts=[context("in-b", "b")])
    second = written(far / "config", clusters={"b": "https://b:1"}, users={})
    config = json.loads(second.read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = "ca.pem"
    second.write_text(json.dumps(config))
    with pytest.raises(Terminal, match=r"far/ca\.pem"):
        read_kubeconfig(first, second, context="in-b")
