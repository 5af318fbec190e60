"""The writes of a workload controller: which errors its status shows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from kedge.api.objects import Object
from kedge.controllers.shared.actions import ActionRecorder
from kedge.errors import Forbidden, NotFound
from kedge.metrics import Metrics
from kedge.runtime import Context


class _Clock:
    """The part of a context that the recorder uses."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


async def refused(error: Exception) -> Object:
    raise error


def recorder() -> ActionRecorder:
    return ActionRecorder(cast(Context, cast(Any, _Clock())), Metrics(), "replicaset")


def test_a_pod_that_is_already_gone_is_no_failure() -> None:
    actions = recorder()
    deleted = actions.run_on("delete", "web-0", refused(NotFound("web-0 is gone")))
    assert asyncio.run(deleted) is None
    assert (actions.last.action, actions.last.error) == ("delete web-0", "")


def test_a_missing_namespace_is_a_failure_of_a_create() -> None:
    actions = recorder()
    with pytest.raises(NotFound):
        asyncio.run(actions.run("create", "web-0", refused(NotFound("there is no namespace"))))
    assert actions.last.error.startswith("NotFound")


def test_any_other_refusal_of_a_write_is_raised() -> None:
    actions = recorder()
    with pytest.raises(Forbidden):
        asyncio.run(actions.run_on("delete", "web-0", refused(Forbidden("a policy forbids it"))))
    assert actions.last.error.startswith("Forbidden")
