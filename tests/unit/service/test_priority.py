"""Priority classes: a new pod gets the priority of its class in the commit that creates it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.objects import POD, World, asynchronous, make_world, pod, pod_key

from kedge.api.views import PodView
from kedge.api.views.decode import decode_view
from kedge.errors import Forbidden, Invalid
from kedge.keys import Key
from kedge.server.service import AdmissionChain, FunctionPolicy


def priority_class(name: str = "high", value: int = 1000, **fields: Any) -> dict[str, Any]:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    return {**body, **fields}


def class_key(name: str = "high") -> Key:
    return Key("PriorityClass.scheduling.k8s.io", "", name)


async def created(world: World, name: str = "web-0", **spec: Any) -> PodView:
    """The pod's view, decoded from its stored bytes."""
    made = await world.create(pod(name, **spec))
    view = decode_view(POD, made.value)
    assert isinstance(view, PodView)
    assert view == made.view
    return view


async def world_with(*classes: dict[str, Any]) -> World:
    world = await make_world()
    for body in classes:
        await world.create(body)
    return world


@asynchronous
async def test_a_pod_gets_the_priority_and_policy_of_the_class_it_names() -> None:
    world = await world_with(priority_class(), priority_class("polite", 7, preemptionPolicy="Never"))
    first = await created(world, priorityClassName="high")
    assert (first.spec.priority, first.spec.preemption_policy) == (1000, "PreemptLowerPriority")
    second = await created(world, "web-1", priorityClassName="polite")
    assert (second.spec.priority, second.spec.preemption_policy) == (7, "Never")


@asynchronous
async def test_a_pod_without_a_class_is_stored_as_it_was_sent() -> None:
    world = await world_with(priority_class())
    assert b'"priority' not in (await world.create(pod())).value


@asynchronous
async def test_a_class_that_does_not_exist_is_forbidden() -> None:
    world = await world_with()
    with pytest.raises(Forbidden, match="no PriorityClass with name high was found"):
        await world.create(pod(priorityClassName="high"))
    await world.create(priority_class())
    await world.create(pod(priorityClassName="high"))


@asynchronous
async def test_built_in_classes_exist() -> None:
    world = await world_with()
    assert (await created(world, priorityClassName="system-node-critical")).spec.priority == 2_000_001_000
    assert (await created(world, "b", priorityClassName="system-cluster-critical")).spec.priority == 2_000_000_000


@asynchronous
async def test_a_pod_cannot_set_another_priority_than_its_class() -> None:
    world = await world_with(priority_class())
    for spec in ({"priority": 5}, {"priority": 1001, "priorityClassName": "high"}):
        with pytest.raises(Forbidden, match="integer value of priority"):
            await world.create(pod(**spec))
    with pytest.raises(Forbidden, match="string value of PreemptionPolicy"):
        await world.create(pod(priorityClassName="high", preemptionPolicy="Never"))
    fitting = await created(world, priorityClassName="high", priority=1000, preemptionPolicy="PreemptLowerPriority")
    assert fitting.spec.priority == 1000
    assert (await created(world, "zero", priority=0)).spec.priority == 0


@asynchronous
async def test_the_default_class_applies_to_pods_without_a_class() -> None:
    world = await world_with(
        priority_class("usual", 50, globalDefault=True, preemptionPolicy="Never"), priority_class()
    )
    usual = await created(world)
    assert (usual.spec.priority_class_name, usual.spec.priority) == ("usual", 50)
    assert usual.spec.preemption_policy == "Never"
    assert (await created(world, "named", priorityClassName="high")).spec.priority == 1000
    await world.service.delete(class_key("usual"))
    assert (await created(world, "later")).spec.priority is None


@asynchronous
async def test_there_is_at_most_one_default() -> None:
    world = await world_with(priority_class("usual", 50, globalDefault=True))
    with pytest.raises(Forbidden, match="usual is already marked as default"):
        await world.create(priority_class("other", 60, globalDefault=True))
    await world.create(priority_class("other", 60))
    with pytest.raises(Forbidden, match="Only one default can exist"):
        await world.service.patch(class_key("other"), {"globalDefault": True})
    await world.service.patch(class_key("usual"), {"globalDefault": False})
    await world.service.patch(class_key("other"), {"globalDefault": True})
    assert (await created(world)).spec.priority_class_name == "other"
    await world.service.patch(class_key("other"), {"description": "still the default"})
    assert (await created(world, "b")).spec.priority_class_name == "other"
    outcomes = await asyncio.gather(
        world.service.delete(class_key("other")),
        *(world.create(priority_class(f"c{n}", n, globalDefault=True)) for n in range(5)),
        return_exceptions=True,
    )
    made = [each for each in outcomes[1:] if not isinstance(each, BaseException)]
    assert len(made) <= 1


@asynchronous
async def test_an_update_that_leaves_the_priority_out_keeps_it() -> None:
    world = await world_with(priority_class("usual", 50, globalDefault=True))
    made = await world.create(pod())
    body = pod()
    body["metadata"]["labels"]["tier"] = "back"
    updated = (await world.service.update(pod_key(), body)).object
    assert (updated.view.spec.priority, updated.view.spec.priority_class_name) == (50, "usual")
    assert updated.view.labels["tier"] == "back"
    with pytest.raises(Invalid):
        await world.service.patch(made.key, {"spec": {"priority": 51}})


@asynchronous
async def test_a_class_set_by_a_policy_counts() -> None:
    add = [{"op": "add", "path": "/spec/priorityClassName", "value": "high"}]
    policy = FunctionPolicy("promote", kinds=("Pod",), mutate=lambda _request, _inputs: add)
    world = await make_world(admission=AdmissionChain([policy]))
    await world.create(priority_class())
    assert (await created(world)).spec.priority == 1000
