"""`kedge exec` into a container that does not run: the state, and where the reason is."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.cli.exec import not_running

WHY = "`kedge why web` has the reason"
PREVIOUS = "`kedge logs web -c main --previous`"


def pod(**state: Any) -> dict[str, Any]:
    statuses = [{"name": "main", "restartCount": state.pop("restarts", 0), "state": state}] if state else []
    spec = {"containers": [{"name": "main"}]}
    return {"metadata": {"name": "web"}, "spec": spec, "status": {"containerStatuses": statuses}}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (pod(running={}), ""),
        (pod(), f"container main of pod web does not run (not started): {WHY}"),
        (
            pod(waiting={"reason": "ContainerCreating"}),
            f"container main of pod web does not run (ContainerCreating): {WHY}",
        ),
        (
            pod(waiting={"reason": "CrashLoopBackOff"}, restarts=2),
            f"container main of pod web does not run (CrashLoopBackOff): {WHY}, {PREVIOUS} its last output",
        ),
        (
            pod(terminated={"reason": "Completed"}),
            f"container main of pod web does not run (Completed): {WHY}, `kedge logs web -c main` its last output",
        ),
    ],
)
def test_a_container_that_does_not_run_is_named_with_the_next_step(found: dict[str, Any], sentence: str) -> None:
    assert not_running(found, "main") == sentence


def test_a_container_that_the_pod_does_not_have_is_left_to_the_server() -> None:
    assert not_running(pod(), "other") == ""
