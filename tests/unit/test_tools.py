"""Programs that tests need: without one a test is skipped with a sentence, and fails with it in CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools import KUBECTL_STREAMS, need_kubectl


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    need_kubectl.cache_clear()
    yield
    need_kubectl.cache_clear()


def kubectl_in(folder: Path, monkeypatch: pytest.MonkeyPatch, minor: str) -> str:
    """A program that prints the version of a kubectl, alone on the path."""
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\necho \'{{"clientVersion": {{"major": "1", "minor": "{minor}"}}}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return str(program)


@pytest.mark.parametrize("minor", ["28", "32+", "100"])
def test_a_kubectl_that_is_new_enough_is_found(minor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kubectl_in(tmp_path, monkeypatch, minor) == need_kubectl()


def test_an_old_kubectl_skips_the_test_and_fails_it_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl_in(tmp_path, monkeypatch, "27")
    sentence = r"needs a newer kubectl than 1\.27: install kubectl 1\.28 or newer and put it on the path"
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=sentence):
        need_kubectl()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=sentence):
        need_kubectl()


def test_a_missing_kubectl_and_one_too_old_for_streams_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    program = kubectl_in(tmp_path, monkeypatch, "30")
    assert need_kubectl() == program
    with pytest.raises(pytest.skip.Exception, match=r"install kubectl 1\.31 or newer"):
        need_kubectl(KUBECTL_STREAMS)
    Path(program).unlink()
    need_kubectl.cache_clear()
    with pytest.raises(pytest.skip.Exception, match=r"needs kubectl: install kubectl 1\.28 or newer"):
        need_kubectl()
