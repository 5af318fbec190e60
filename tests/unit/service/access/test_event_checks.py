"""Events that agents write: as themselves, and about their own node or its pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.access import ADA, ADMIN, agent_of, guarded_api, guarded_world, written_by
from tests.kit.loops import on_loop
from tests.objects import NODE, POD, World, asynchronous, node, pod

from kedge.api.access import Caller
from kedge.api.event_bodies import event_body, event_key, event_repeat
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.api.wellknown import EVENT_KIND
from kedge.errors import Forbidden, NotFound
from kedge.keys import Key
from kedge.server.service import Service

A, B = agent_of("node-a"), agent_of("node-b")
EVENT = KINDS.of_key_kind(EVENT_KIND)


async def bound_world() -> tuple[World, Object]:
    """The pod web-0 runs on node-a; the pod loose has no node; node-b is empty."""
    world = await guarded_world()
    for name in ("node-a", "node-b"):
        await world.service.create(NODE, node(name))
    made = await world.create(pod())
    await world.create(pod("loose"))
    await world.service.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
    return world, made


def event(name: str, kind: str, about: str, **fields: Any) -> dict[str, Any]:
    """An Event as the agent of node-a writes it, but for `fields`."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": kind, "name": about},
        "reason": "Seen",
        "source": {"component": "agent-node-a"},
        "reportingComponent": "agent-node-a",
        **fields,
    }


async def uid_of(service: Service, name: str) -> str:
    """The uid of the pod of this name, or of one that is gone."""
    try:
        return (await service.get(Key("Pod", "default", name))).uid
    except NotFound:
        return "gone"


async def write(world: World, caller: Caller, body: dict[str, Any]) -> Key:
    about = body["involvedObject"]
    if about["kind"] == "Pod" and "uid" not in about:
        body = {**body, "involvedObject": {**about, "uid": await uid_of(world.service, about["name"])}}
    return (await world.service.create(EVENT, body, options=written_by(caller))).object.key


@asynchronous
async def test_an_agent_writes_the_events_of_its_event_writer() -> None:
    world, made = await bound_world()
    key = event_key(made, "Started", "agent-node-a")
    body = event_body(
        key,
        made,
        component="agent-node-a",
        event_type="Normal",
        reason="Started",
        message="it runs",
        now=world.env.now(),
        decision="d",
    )
    await write(world, A, body)
    patch = event_repeat(message="again", now=world.env.now(), decision="d", count=2)
    await world.service.patch(key, patch, options=written_by(A))
    about_node = event("n", "Node", "node-a", source={"component": "agent-node-a", "host": "node-a"})
    await write(world, A, about_node)
    await write(world, A, event("gone", "Pod", "deleted-before-its-last-event"))


@asynchronous
async def test_the_last_event_about_a_pod_may_come_after_another_pod_has_its_name() -> None:
    world, made = await bound_world()
    await world.service.delete(made.key, options=DeleteOptions(grace_s=0))
    await world.create(pod())  # not bound yet
    last = {"kind": "Pod", "name": made.key.name, "uid": made.uid}
    await write(world, A, event("last", "Pod", "web-0", involvedObject=last))
    with pytest.raises(Forbidden, match="may write its own Events alone"):
        await write(world, A, event("new", "Pod", "web-0"))


@asynchronous
async def test_an_event_of_an_agent_about_a_pod_has_the_uid_of_the_pod() -> None:
    """Without one it is shown with every pod of the name, also one that is created later."""
    world, _ = await bound_world()
    for name in ("web-0", "no-such"):
        with pytest.raises(Forbidden, match="may write its own Events alone"):
            await write(world, A, event(name, "Pod", name, involvedObject={"kind": "Pod", "name": name, "uid": ""}))


@pytest.mark.parametrize(
    ("caller", "body"),
    [
        (A, event("a", "Node", "node-b")),
        (A, event("b", "Pod", "loose")),
        (A, event("c", "ConfigMap", "node-a")),
        (A, event("d", "Pod", "web-0", source={"component": "scheduler"})),
        (A, event("e", "Pod", "web-0", reportingComponent="agent-node-b")),
        (A, event("f", "Pod", "web-0", source={"component": "agent-node-a", "host": "node-b"})),
        (A, event("g", "Pod", "web-0", source=["agent-node-a"])),
        (A, event("h", "Pod", "web-0", source=None, reportingComponent="")),
        (B, event("i", "Pod", "web-0", source={"component": "agent-node-b"}, reportingComponent="agent-node-b")),
    ],
)
@asynchronous
async def test_an_agent_creates_no_other_event(caller: Caller, body: dict[str, Any]) -> None:
    world, _ = await bound_world()
    with pytest.raises(Forbidden, match="may write its own Events alone"):
        await write(world, caller, body)


@asynchronous
async def test_an_agent_changes_neither_the_events_of_others_nor_the_subject_of_its_own() -> None:
    world, _ = await bound_world()
    other = event("of-b", "Node", "node-b", source={"component": "agent-node-b"}, reportingComponent="agent-node-b")
    key = await write(world, B, other)
    mine: dict[str, Any] = {"source": {"component": "agent-node-a"}, "reportingComponent": "agent-node-a"}
    taken: dict[str, Any] = {**mine, "involvedObject": {"kind": "Node", "name": "node-a"}}
    for change in ({"message": "rewritten"}, {"metadata": {"labels": {"a": "b"}}}, mine, taken):
        with pytest.raises(Forbidden, match="may write its own Events alone"):
            await world.service.patch(key, change, options=written_by(A))
    own = await write(world, A, event("of-a", "Pod", "web-0"))
    moves: list[dict[str, Any]] = [
        {"involvedObject": {"name": "loose", "uid": await uid_of(world.service, "loose")}},
        {"involvedObject": {"kind": "Node", "name": "node-b"}},
        {"reportingComponent": "scheduler"},
    ]
    for move in moves:
        with pytest.raises(Forbidden, match="may write its own Events alone"):
            await world.service.patch(own, move, options=written_by(A))
    replaced = event("of-b", "Node", "node-a")
    with pytest.raises(Forbidden, match="may write its own Events alone"):
        await world.service.update(key, replaced, options=written_by(A))


@asynchronous
async def test_events_of_other_callers_are_not_checked() -> None:
    world, _ = await bound_world()
    for number, caller in enumerate((ADMIN, ADA)):
        await write(world, caller, event(f"e-{number}", "Node", "node-b", source={"component": "mine"}))


@on_loop
async def test_an_agent_writes_events_over_http_in_the_stored_version_alone() -> None:
    async with guarded_api() as api:
        for name in ("node-a", "node-b"):
            await api.service.create(NODE, node(name))
        await api.service.create(POD, pod("loose"))
        path = "/api/v1/namespaces/default/events"
        right, _ = await api.send(A, "POST", path, event("right", "Node", "node-a"))
        wrong, refusal = await api.send(A, "POST", path, event("wrong", "Node", "node-b"))
        of_loose = {"kind": "Pod", "name": "loose", "uid": await uid_of(api.service, "loose")}
        loose, _ = await api.send(A, "POST", path, event("loose", "Pod", "loose", involvedObject=of_loose))
        patched, _ = await api.send(B, "PATCH", f"{path}/right", {"message": "rewritten"})
        repeated, _ = await api.send(A, "PATCH", f"{path}/right", {"count": 2})
        newer, _ = await api.send(A, "PATCH", "/apis/events.k8s.io/v1/namespaces/default/events/right", {"note": "x"})
    assert (right, wrong, loose, patched, repeated, newer) == (201, 403, 403, 403, 200, 403)
    assert "agent of node node-a may write its own Events alone" in refusal["message"]
