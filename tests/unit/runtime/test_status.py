"""Status is written only on change, with its observed generation, and never over a newer version."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.kit.controllers import REPLICA_SET, ControllerHarness, until, with_harness

from kedge import Action, Context
from kedge.api.conditions import condition
from kedge.api.objects import Object
from kedge.api.patch import apply_merge_patch
from kedge.keys import Key
from kedge.runtime.status import differs, plan_status

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
WEB = Key("ReplicaSet.apps", "default", "web")


def web(status: dict[str, Any] | None = None, *, generation: int = 3, revision: int = 7) -> Object:
    body: dict[str, Any] = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": "default", "generation": generation},
    }  # fmt: skip
    if status is not None:
        body["status"] = status
    return Object(REPLICA_SET, WEB, msgspec.json.encode(body), revision=revision)


def written(found: Object, status: dict[str, Any], now: datetime = NOW) -> Object:
    """The object after a status was written to it."""
    patch = plan_status(found, status, now)
    assert patch is not None
    del patch["metadata"]
    body = apply_merge_patch(found.edit(), patch)
    return Object(REPLICA_SET, WEB, msgspec.json.encode(body), revision=found.revision + 1)


def test_a_status_patch_has_the_version_it_was_decided_on_and_its_generation() -> None:
    patch = plan_status(web(), {"replicas": 2}, NOW)
    assert patch == {"metadata": {"resourceVersion": "7"}, "status": {"replicas": 2, "observedGeneration": 3}}


def test_an_unchanged_status_is_not_written() -> None:
    ready = condition("Ready", status=True, reason="Fine")
    found = written(web(), {"replicas": 2, "conditions": [ready]})
    assert plan_status(found, {"replicas": 2, "conditions": [ready]}, LATER) is None
    assert plan_status(found, {"replicas": 2}, LATER) is None
    assert plan_status(found, {}, LATER) is None


def test_a_new_generation_is_a_change_although_nothing_else_changed() -> None:
    found = written(web(), {"replicas": 2})
    again = web({"replicas": 2, "observedGeneration": 3}, generation=4)
    assert plan_status(found, {"replicas": 2}, NOW) is None
    patch = plan_status(again, {"replicas": 2}, NOW)
    assert patch is not None
    assert patch["status"] == {"observedGeneration": 4}


@pytest.mark.parametrize(
    ("old", "new", "news"),
    [
        ("2030-01-01T00:00:00Z", "2031-02-03T04:05:06Z", False),
        ("2030-01-01T00:00:00.5Z", "2031-02-03T04:05:06+02:00", False),
        ("2030-01-01T00:00:00Z", "2031-02-03T04:05:06Z and more", True),
        ("2030-01-01T00:00:00Z", "never", True),
        (None, "2030-01-01T00:00:00Z", True),
        ({"at": "2030-01-01T00:00:00Z", "n": 1}, {"at": "2031-01-01T00:00:00Z", "n": 1}, False),
        ({"at": "2030-01-01T00:00:00Z", "n": 1}, {"at": "2031-01-01T00:00:00Z", "n": 2}, True),
        ([{"at": "2030-01-01T00:00:00Z"}], [{"at": "2031-01-01T00:00:00Z"}], False),
        ([{"at": "2030-01-01T00:00:00Z"}], [{"at": "2031-01-01T00:00:00Z", "n": 1}], True),
        ([{"at": "2030-01-01T00:00:00Z", "n": 1}], [{"at": "2031-01-01T00:00:00Z"}], True),
        ([1, 2], [1], True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": None}, True),
        ({}, {"a": None}, False),
        (None, [], True),
    ],
)
def test_times_alone_are_no_change_and_everything_else_is(old: Any, new: Any, news: bool) -> None:
    assert differs(old, new) is news


def test_conditions_of_other_writers_stay_and_a_transition_keeps_its_time() -> None:
    theirs = {"type": "Scheduled", "status": "True", "lastTransitionTime": "2029-01-01T00:00:00Z"}
    found = written(web({"conditions": [theirs]}), {"conditions": [condition("Ready", status=False, reason="No")]})
    assert found.edit()["status"]["conditions"][0] == theirs
    changed = written(found, {"conditions": [condition("Ready", status=False, reason="Still")]}, LATER)
    ready = changed.edit()["status"]["conditions"][1]
    assert (ready["reason"], ready["lastTransitionTime"]) == ("Still", "2030-01-01T00:00:00Z")
    turned = written(changed, {"conditions": [condition("Ready", status=True, reason="Yes")]}, LATER)
    ready = turned.edit()["status"]["conditions"][1]
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", "2030-01-01T01:00:00Z")
    assert ready["observedGeneration"] == 3


def test_the_input_is_not_modified() -> None:
    found, written = web({"conditions": []}), {"conditions": [condition("Ready", status=True, reason="Yes")]}
    before = msgspec.json.encode(written)
    plan_status(found, written, NOW)
    assert msgspec.json.encode(written) == before


@with_harness()
async def test_the_observed_generation_is_that_of_the_version_read_although_a_newer_exists(
    harness: ControllerHarness,
) -> None:
    """argo-rollouts#4073 (bug 10): a status decided on an old spec is rejected; it never describes the new one."""
    written: list[tuple[int, int]] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        if not written:
            await harness.scale("web", 9)  # a newer one exists, and this run does not know it
        written.append((found.metadata.generation, found.view.spec.replicas))
        await ctx.write_status(found, {"replicas": found.view.spec.replicas})
        return Action.await_change()

    history: list[tuple[int, int, int]] = []

    async def follow() -> None:
        while True:
            view = (await harness.get()).view
            history.append((view.metadata.generation, view.status.observed_generation, view.status.replicas))
            await asyncio.sleep(0.001)

    await harness.create("web", 1)
    following = asyncio.ensure_future(follow())
    harness.open(work)
    await until(lambda: len(written) >= 2)
    await asyncio.sleep(1)
    following.cancel()
    assert written[0] == (1, 1)
    assert history[-1] == (2, 2, 9)
    assert all(not observed or replicas == {1: 1, 2: 9}[observed] for _, observed, replicas in history)
    assert all((generation, observed) != (2, 1) for generation, observed, _ in history)
    assert harness.decisions()[0].generation == 1
