"""Updates and patches: the fields that they may change, and writes without effect."""

from __future__ import annotations

import asyncio

import pytest
from tests.objects import asynchronous, config_map, deployment, make_world, pod, pod_key

from kedge.api.requests import PatchType
from kedge.errors import BadRequest, Conflict, Invalid, MethodNotAllowed, NotFound, TooLarge
from kedge.keys import Key
from kedge.limits import Limits

SETTINGS = Key("ConfigMap", "default", "settings")
WEB = Key("Deployment.apps", "default", "web")


@asynchronous
async def test_an_update_of_an_old_version_is_a_conflict() -> None:
    world = await make_world()
    first = await world.create(config_map(colour="red"))
    await world.service.patch(SETTINGS, {"data": {"colour": "blue"}})
    stale = first.edit()
    stale["metadata"]["resourceVersion"] = str(first.revision)
    with pytest.raises(Conflict, match="the object has been modified") as caught:
        await world.service.update(SETTINGS, stale)
    assert caught.value.revision == (await world.get(SETTINGS)).revision


@asynchronous
async def test_an_update_of_another_incarnation_is_a_conflict() -> None:
    world = await make_world()
    await world.create(config_map())
    body = config_map()
    body["metadata"]["uid"] = "of-its-predecessor"
    with pytest.raises(Conflict, match="another object of that name"):
        await world.service.update(SETTINGS, body)


@asynchronous
async def test_a_write_without_changes_does_not_move_the_revision() -> None:
    world = await make_world()
    made = await world.create(deployment())
    before = await world.store.revision()
    same = made.edit()
    shuffled = {name: same[name] for name in reversed(same)}
    for body in (same, shuffled, deployment()):
        written = await world.service.update(WEB, body)
        assert written.object.revision == made.revision
    for patch in ({}, {"spec": {"replicas": 3}}, {"metadata": {"labels": None}}):
        assert (await world.service.patch(WEB, patch)).object.revision == made.revision
    assert await world.store.revision() == before


@asynchronous
async def test_generation_counts_changes_of_the_spec_only() -> None:
    world = await make_world()
    await world.create(deployment())
    assert (await world.service.patch(WEB, {"spec": {"replicas": 5}})).object.metadata.generation == 2
    assert (await world.service.patch(WEB, {"metadata": {"labels": {"a": "b"}}})).object.metadata.generation == 2
    status = {"status": {"replicas": 5}}
    assert (await world.service.patch(WEB, status, subresource="status")).object.metadata.generation == 2


@asynchronous
async def test_status_and_spec_are_written_separately() -> None:
    world = await make_world()
    await world.create(deployment())
    await world.service.patch(WEB, {"spec": {"replicas": 9}, "status": {"replicas": 2}}, subresource="status")
    after = (await world.get(WEB)).edit()
    assert after["spec"]["replicas"] == 3
    assert after["status"]["replicas"] == 2
    await world.service.patch(WEB, {"spec": {"replicas": 4}, "status": {"replicas": 7}})
    after = (await world.get(WEB)).edit()
    assert after["spec"]["replicas"] == 4
    assert after["status"]["replicas"] == 2


@asynchronous
async def test_a_condition_keeps_its_transition_time_until_it_changes() -> None:
    world = await make_world()
    await world.create(deployment())

    async def write(status: str, message: str) -> str:
        condition = {"type": "Available", "status": status, "reason": "R", "message": message}
        written = await world.service.patch(WEB, {"status": {"conditions": [condition]}}, subresource="status")
        time: str = written.object.edit()["status"]["conditions"][0]["lastTransitionTime"]
        return time

    first = await write("True", "up")
    world.clock.advance(60)
    assert await write("True", "still up") == first
    world.clock.advance(60)
    assert await write("False", "down") > first


@asynchronous
async def test_an_update_cannot_change_server_fields() -> None:
    world = await make_world()
    made = await world.create(config_map())
    body = {"metadata": {"creationTimestamp": "1999-01-01T00:00:00Z", "deletionTimestamp": "1999-01-01T00:00:00Z"}}
    after = (await world.service.patch(SETTINGS, {**body, "data": {"a": "b"}})).object
    assert after.metadata.creation_timestamp == made.metadata.creation_timestamp
    assert after.metadata.deletion_timestamp is None


@asynchronous
async def test_a_json_patch_applies_whole_or_not_at_all() -> None:
    world = await make_world()
    await world.create(config_map(a="1"))
    good = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "2"}]
    assert (await world.service.patch(SETTINGS, good, patch_type=PatchType.JSON)).object.edit()["data"] == {"a": "2"}
    bad = [{"op": "add", "path": "/data/b", "value": "3"}, {"op": "test", "path": "/data/a", "value": "1"}]
    with pytest.raises(Invalid):
        await world.service.patch(SETTINGS, bad, patch_type=PatchType.JSON)
    assert (await world.get(SETTINGS)).edit()["data"] == {"a": "2"}


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"'])
def test_an_invalid_patch_is_a_bad_request(body: bytes) -> None:
    @asynchronous
    async def send() -> None:
        world = await make_world()
        await world.create(config_map())
        with pytest.raises(BadRequest):
            await world.service.patch(SETTINGS, body)

    send()


@asynchronous
async def test_a_patch_cannot_rename_an_object() -> None:
    world = await make_world()
    await world.create(config_map())
    for field in ("name", "namespace"):
        with pytest.raises(Invalid, match=field):
            await world.service.patch(SETTINGS, {"metadata": {field: "other"}})


@asynchronous
async def test_immutable_fields_cannot_be_changed() -> None:
    world = await make_world()
    await world.create(pod())
    with pytest.raises(Invalid):
        await world.service.patch(pod_key(), {"spec": {"schedulerName": "another"}})
    with pytest.raises(Invalid):
        await world.service.patch(pod_key(), {"spec": {"nodeName": "node-a"}})
    await world.create(deployment())
    selector = {"matchLabels": {"app": "web", "tier": "x"}}
    template = {"metadata": {"labels": {"app": "web", "tier": "x"}}}
    with pytest.raises(Invalid, match=r"spec\.selector"):
        await world.service.patch(WEB, {"spec": {"selector": selector, "template": template}})


@asynchronous
async def test_concurrent_patches_of_different_fields_all_survive() -> None:
    world = await make_world()
    await world.create(config_map())
    await asyncio.gather(*(world.service.patch(SETTINGS, {"data": {f"k{n}": str(n)}}) for n in range(40)))
    assert (await world.get(SETTINGS)).edit()["data"] == {f"k{n}": str(n) for n in range(40)}


@asynchronous
async def test_an_object_that_does_not_exist_cannot_be_changed() -> None:
    world = await make_world()
    with pytest.raises(NotFound):
        await world.service.patch(SETTINGS, {"data": {}})
    await world.create(config_map())
    with pytest.raises(MethodNotAllowed):
        await world.service.patch(SETTINGS, {"status": {}}, subresource="status")


@asynchronous
async def test_scale_changes_replicas_and_nothing_else() -> None:
    world = await make_world()
    await world.create(deployment())
    scale = await world.service.get_scale(WEB)
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 3, "app=web")
    scale["spec"]["replicas"] = 7
    assert (await world.service.update(WEB, scale, subresource="scale")).object.view.spec.replicas == 7
    with pytest.raises(Conflict):  # the scale was read before the change
        await world.service.update(WEB, scale, subresource="scale")
    patched = await world.service.patch(WEB, {"spec": {"replicas": 0}}, subresource="scale")
    assert patched.object.view.spec.replicas == 0
    with pytest.raises(Invalid, match=r"spec\.replicas"):
        await world.service.patch(WEB, {"spec": {"replicas": -1}}, subresource="scale")
    await world.create(config_map())
    with pytest.raises(MethodNotAllowed):
        await world.service.get_scale(SETTINGS)


@pytest.mark.parametrize("subresource", ["binding", "eviction", "scale", "nonsense"])
def test_a_subresource_with_its_own_verb_cannot_be_updated(subresource: str) -> None:
    """Such a write would bypass the policies of the verb."""

    @asynchronous
    async def run() -> None:
        world = await make_world()
        await world.create(pod())
        with pytest.raises(MethodNotAllowed):
            await world.service.patch(pod_key(), {"metadata": {"labels": {"a": "b"}}}, subresource=subresource)

    run()


@pytest.mark.parametrize("metadata", ["junk", None, 5, []])
def test_invalid_metadata_does_not_replace_the_stored_one(metadata: object) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        await world.create(pod())
        for patch, how in (
            ({"metadata": metadata}, PatchType.MERGE),
            ([{"op": "replace", "path": "/metadata", "value": metadata}], PatchType.JSON),
        ):
            with pytest.raises(BadRequest, match="metadata"):
                await world.service.patch(pod_key(), patch, patch_type=how)
        assert (await world.get(pod_key())).metadata.labels == {"app": "web"}

    run()


@asynchronous
async def test_true_is_not_equal_to_one() -> None:
    world = await make_world()
    body = deployment()
    body["spec"]["x-flag"] = 1
    await world.create(body)
    changed = (await world.service.patch(WEB, {"spec": {"x-flag": True}})).object
    assert changed.edit()["spec"]["x-flag"] is True
    assert changed.metadata.generation == 2


@asynchronous
async def test_a_patch_of_scale_without_a_version_never_conflicts() -> None:
    world = await make_world()
    await world.create(deployment())
    writes = [world.service.patch(WEB, {"status": {"replicas": n}}, subresource="status") for n in range(5)]
    scale = world.service.patch(WEB, {"spec": {"replicas": 9}}, subresource="scale")
    await asyncio.gather(*writes, scale)
    assert (await world.get(WEB)).view.spec.replicas == 9
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}}
    with pytest.raises(Conflict):
        await world.service.patch(WEB, stale, subresource="scale")


@asynchronous
async def test_a_cancelled_write_does_not_block_others() -> None:
    """Writers queue for a contended key; a cancelled one leaves the queue, whether it waits or holds the lock."""
    world = await make_world()
    await world.create(config_map())
    for turns in range(12):
        writers = [
            asyncio.ensure_future(world.service.patch(SETTINGS, {"data": {f"k{n}": str(turns)}})) for n in range(6)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for writer in writers[::2]:
            writer.cancel()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*writers, return_exceptions=True)
        assert not any(isinstance(outcome, BaseException) for outcome in outcomes[1::2])
        assert not any(lock.locked() for lock in world.service._core.contended.values())


@asynchronous
async def test_other_tasks_run_during_a_patch_of_many_operations() -> None:
    world = await make_world()
    await world.create(config_map(colour="red"))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    before = turns
    operations = [{"op": "add", "path": f"/data/k{n % 100}", "value": str(n)} for n in range(10_000)]
    patched = await world.service.patch(SETTINGS, operations, patch_type=PatchType.JSON)
    turning.cancel()
    assert turns - before >= 10_000 // 250 - 1
    assert patched.object.edit()["data"]["k99"] == "9999"


@asynchronous
async def test_a_patch_is_stopped_at_the_object_limit_of_its_server() -> None:
    """By the operation that passes it, not by the check of the result: a later operation would make it small again."""
    world = await make_world(limits=Limits(commit_bytes_max=20_000))
    await world.create(config_map(colour="red"))
    operations: list[dict[str, str]] = [{"op": "add", "path": f"/data/k{n}", "value": "x" * 1_000} for n in range(30)]
    operations += [{"op": "remove", "path": f"/data/k{n}"} for n in range(30)]
    with pytest.raises(TooLarge, match="more than 20000 bytes"):
        await world.service.patch(SETTINGS, operations, patch_type=PatchType.JSON)


@pytest.mark.parametrize("depth", [101, 1_000, 100_000])
@pytest.mark.parametrize("patch_type", [PatchType.MERGE, PatchType.STRATEGIC, PatchType.JSON])
@pytest.mark.parametrize("field", ["data", "metadata"])
@asynchronous
async def test_a_deep_patch_given_as_a_mapping_is_refused(field: str, patch_type: PatchType, depth: int) -> None:
    """Also where a fast path looks at it first: a patch of metadata alone has one."""
    world = await make_world()
    before = await world.create(config_map(colour="red"))
    nested: dict[str, object] = {}
    for _ in range(depth):
        nested = {"a": nested}
    body: object = {field: {"annotations": nested}}
    if patch_type is PatchType.JSON:
        body = [{"op": "add", "path": f"/{field}/annotations", "value": nested}]
    with pytest.raises((BadRequest, Invalid)):
        await world.service.patch(SETTINGS, body, patch_type=patch_type)
    assert (await world.get(SETTINGS)).revision == before.revision
