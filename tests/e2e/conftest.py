"""Fixtures of the tests with real clients."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.kit.api_server import ServerProcess, running_server
from tests.tools import need_kubectl


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes without `--state` keep their decisions below a folder of the tests, not in the user's home."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state-home"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`kedge server` for all tests of a module, and the kubectl on the path."""
    need_kubectl()
    with running_server(tmp_path_factory.mktemp("kubectl") / "state") as running:
        yield running
