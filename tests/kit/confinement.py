"""Pods of real processes for tests of limits, and a mark for tests that need a writable control group of memory."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.agent import pod_view
from tests.kit.process_nodes import POD

from kedge.agent.process import cgroups
from kedge.api.views import PodView


def enforced() -> dict[str, bool]:
    """The limits that this machine enforces."""
    tree = cgroups.CgroupTree("kedge-test-probe")
    found = tree.abilities
    tree.close()
    return found


GROUPS = pytest.mark.skipif(not enforced()["memory"], reason="no control group of memory is writable here")
CPU_GROUPS = pytest.mark.skipif(not enforced()["cpu"], reason="no control group of CPU is writable here")


def web(*command: str, spec: dict[str, Any] | None = None, **container: Any) -> PodView:
    made = {"name": "main", "image": "x", "command": list(command), **container}
    return pod_view(metadata={"uid": POD.pod_uid, "name": "web"}, containers=[made], **(spec or {}))
