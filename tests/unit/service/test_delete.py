"""Deletion: grace period, finalizers, propagation, preconditions, and namespaces."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, deployment, make_world, node, pod, pod_key

from kedge.api.requests import Binding, DeleteOptions, ListOptions
from kedge.errors import BadRequest, Conflict, Invalid, NotFound
from kedge.keys import Key

SETTINGS = Key("ConfigMap", "default", "settings")
DEFAULT = Key("Namespace", "", "default")


async def bound_pod(world: World, **spec: Any) -> None:
    await world.create(node())
    await world.create(pod(**spec))
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))


@asynchronous
async def test_an_object_without_finalizers_is_removed_at_once() -> None:
    world = await make_world()
    await world.create(config_map())
    written = await world.service.delete(SETTINGS)
    assert written.removed
    with pytest.raises(NotFound):
        await world.get(SETTINGS)
    with pytest.raises(NotFound):
        await world.service.delete(SETTINGS)


@asynchronous
async def test_a_finalizer_keeps_an_object_until_it_is_removed() -> None:
    world = await make_world()
    body = deployment()
    body["metadata"]["finalizers"] = ["example.dev/cleanup"]
    made = await world.create(body)
    marked = await world.service.delete(made.key)
    assert not marked.removed
    assert marked.object.metadata.deletion_timestamp is not None
    assert marked.object.metadata.generation == 2
    again = await world.service.delete(made.key)
    assert again.object.revision == marked.object.revision
    with pytest.raises(Invalid, match="finalizer"):
        await world.service.patch(made.key, {"metadata": {"finalizers": ["example.dev/cleanup", "example.dev/more"]}})
    freed = await world.service.patch(made.key, {"metadata": {"finalizers": []}})
    assert freed.removed
    with pytest.raises(NotFound):
        await world.get(made.key)


@pytest.mark.parametrize(
    ("propagation", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan"), ("Background", None)]
)
def test_propagation_sets_the_finalizer_of_the_garbage_collector(propagation: str, finalizer: str | None) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        made = await world.create(deployment())
        written = await world.service.delete(made.key, DeleteOptions(propagation=propagation))
        assert written.removed == (finalizer is None)
        if finalizer:
            assert written.object.metadata.finalizers == (finalizer,)

    run()


@asynchronous
async def test_an_unknown_propagation_is_rejected() -> None:
    world = await make_world()
    await world.create(config_map())
    with pytest.raises(BadRequest, match="Sideways"):
        await world.service.delete(SETTINGS, DeleteOptions(propagation="Sideways"))


@asynchronous
async def test_preconditions_protect_the_successor_of_a_name() -> None:
    world = await make_world()
    made = await world.create(config_map())
    for options in (DeleteOptions(uid="other"), DeleteOptions(revision=made.revision - 1)):
        with pytest.raises(Conflict):
            await world.service.delete(SETTINGS, options)
    await world.service.delete(SETTINGS, DeleteOptions(uid=made.uid, revision=made.revision))


@asynchronous
async def test_a_running_pod_gets_its_grace_period_which_can_only_be_shortened() -> None:
    world = await make_world()
    await bound_pod(world, terminationGracePeriodSeconds=60)
    marked = (await world.service.delete(pod_key())).object
    assert marked.metadata.deletion_grace_period_seconds == 60
    assert marked.edit()["metadata"]["deletionTimestamp"] == "2030-01-01T00:01:00Z"
    assert (await world.service.delete(pod_key(), DeleteOptions(grace_s=90))).object.revision == marked.revision
    hurried = (await world.service.delete(pod_key(), DeleteOptions(grace_s=5))).object
    assert hurried.edit()["metadata"]["deletionTimestamp"] == "2030-01-01T00:00:05Z"
    assert (await world.service.delete(pod_key(), DeleteOptions(grace_s=0))).removed


@asynchronous
async def test_an_unbound_pod_has_no_grace_period() -> None:
    world = await make_world()
    await world.create(pod())
    assert (await world.service.delete(pod_key())).removed
    await bound_pod(world)
    await world.record_end(pod_key())
    assert (await world.service.delete(pod_key())).removed


@asynchronous
async def test_a_namespace_is_deleted_in_two_steps() -> None:
    world = await make_world()
    await world.create(config_map())
    marked = await world.service.delete(DEFAULT)
    assert not marked.removed
    assert marked.object.view.status.phase == "Terminating"
    # Objects inside can still be changed and removed; none can be created.
    await world.service.patch(SETTINGS, {"data": {"a": "b"}})
    await world.service.delete(SETTINGS)
    empty = {"metadata": {"name": "default"}, "spec": {"finalizers": []}}
    assert (await world.service.update(DEFAULT, empty, subresource="finalize")).removed
    with pytest.raises(NotFound):
        await world.get(DEFAULT)


@asynchronous
async def test_only_finalize_changes_a_namespaces_finalizers() -> None:
    world = await make_world()
    await world.service.patch(DEFAULT, {"spec": {"finalizers": []}, "metadata": {"labels": {"a": "b"}}})
    assert (await world.get(DEFAULT)).view.spec.finalizers == ("kubernetes",)


@asynchronous
async def test_a_collection_is_deleted_by_selection() -> None:
    world = await make_world()
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        body = config_map(name)
        body["metadata"]["labels"] = {"app": app}
        await world.create(body)
    gone = await world.service.delete_collection(CONFIG_MAP, ListOptions(namespace="default", label_selector="app=x"))
    assert [written.object.key.name for written in gone] == ["a", "b"]
    assert [o.key.name for o in (await world.service.list(CONFIG_MAP)).objects] == ["c"]
