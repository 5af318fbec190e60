"""Creates: the fields that the server sets, and the bodies that it rejects."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    asynchronous,
    config_map,
    deployment,
    make_world,
    node,
    pod,
    pod_key,
)

from kedge.api.requests import WriteOptions
from kedge.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound, TooLarge
from kedge.keys import Key


@asynchronous
async def test_the_server_sets_its_own_fields() -> None:
    world = await make_world()
    body = pod()
    body["metadata"] |= {"uid": "mine", "generation": 7, "creationTimestamp": "1999-01-01T00:00:00Z"}
    body["status"] = {"phase": "Running"}
    made = await world.create(body)
    assert made.uid not in ("", "mine")
    assert made.view.metadata.generation == 1
    assert made.edit()["metadata"]["creationTimestamp"] == "2030-01-01T00:00:00Z"
    assert made.view.status.phase == "Pending"
    assert "resourceVersion" not in made.edit()["metadata"]
    assert f'"resourceVersion":"{made.revision}"'.encode() in made.json()


@asynchronous
async def test_a_node_is_created_with_its_status() -> None:
    world = await make_world()
    assert (await world.create(node())).edit()["status"]["allocatable"]["cpu"] == "4"


@asynchronous
async def test_unknown_fields_are_kept_with_a_warning() -> None:
    world = await make_world()
    body = pod(dnsPolicy="ClusterFirst")
    body["spec"]["containers"][0]["stdinOnce"] = True
    written = await world.create_written(body)
    assert (await world.get(pod_key())).edit()["spec"]["dnsPolicy"] == "ClusterFirst"
    assert any("spec.dnsPolicy" in warning for warning in written.warnings)
    assert any("spec.containers[0].stdinOnce" in warning for warning in written.warnings)


@asynchronous
async def test_numbers_are_stored_as_they_were_sent() -> None:
    world = await make_world()
    body = b'{"metadata":{"name":"n","namespace":"default"},"odd":{"a":1.10,"b":1e400}}'
    await world.service.create(CONFIG_MAP, body)
    stored = (await world.get(Key("ConfigMap", "default", "n"))).value
    assert b"1.10" in stored
    assert b"1E+400" in stored or b"1e400" in stored


@asynchronous
async def test_a_name_can_be_taken_only_once() -> None:
    world = await make_world()
    await world.create(pod())
    before = await world.store.revision()
    with pytest.raises(AlreadyExists) as caught:
        await world.create(pod())
    assert caught.value.key == pod_key()
    assert await world.store.revision() == before


@asynchronous
async def test_names_are_generated_until_one_is_free() -> None:
    world = await make_world()
    body = config_map()
    body["metadata"] = {"generateName": "settings-", "namespace": "default"}
    names = {(await world.create(body)).key.name for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("settings-") and len(name) == len("settings-") + 5 for name in names)


@asynchronous
async def test_an_object_without_any_name_is_invalid() -> None:
    world = await make_world()
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await world.service.create(CONFIG_MAP, {"metadata": {}}, namespace="default")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"apiVersion": "v2"}, "sent as a Pod of v1"),
        ({"kind": "Node"}, "sent as a Pod of v1"),
        ({"metadata": {"name": "x", "namespace": "other"}}, "not the namespace it was sent to"),
        ({"metadata": {"name": "x", "resourceVersion": "7"}}, "resourceVersion should not be set"),
    ],
)
def test_a_body_must_match_the_kind_and_namespace_it_is_sent_to(change: dict[str, Any], message: str) -> None:
    @asynchronous
    async def send() -> None:
        world = await make_world()
        with pytest.raises(BadRequest, match=message):
            await world.service.create(POD, {**pod(), **change}, namespace="default")

    send()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b'{"metadata":"\xff"}', b"[" * 10_000, b"{}" * 2])
def test_garbage_is_a_bad_request(body: bytes) -> None:
    @asynchronous
    async def send() -> None:
        world = await make_world()
        with pytest.raises((BadRequest, Invalid)):
            await world.service.create(POD, body, namespace="default")

    send()


@asynchronous
async def test_every_bad_field_is_named_at_once() -> None:
    world = await make_world()
    body = pod(restartPolicy="Perhaps")
    body["metadata"]["labels"] = {"bad label": "x"}
    body["spec"]["containers"][0] |= {"name": "Not A Name", "resources": {"requests": {"cpu": "lots"}}}
    with pytest.raises(Invalid) as caught:
        await world.create(body)
    paths = {error.path for error in caught.value.errors}
    assert "metadata.labels" in paths
    assert "spec.restartPolicy" in paths
    assert "spec.containers[0].name" in paths
    assert any(path.startswith("spec.containers[0].resources.requests") for path in paths)


@asynchronous
async def test_a_create_proves_that_its_namespace_is_active() -> None:
    world = await make_world()
    body = config_map()
    body["metadata"]["namespace"] = "nowhere"
    with pytest.raises(NotFound, match="nowhere"):
        await world.create(body)
    await world.service.delete(Key("Namespace", "", "default"))
    with pytest.raises(Forbidden, match="being terminated"):
        await world.create(config_map())


@asynchronous
async def test_a_dry_run_does_everything_but_commit() -> None:
    world = await make_world()
    before = await world.store.revision()
    written = await world.service.create(POD, pod(), options=WriteOptions(dry_run=True))
    assert written.object.uid
    assert await world.store.revision() == before
    with pytest.raises(NotFound):
        await world.get(pod_key())


@asynchronous
async def test_an_object_past_the_size_limit_is_rejected() -> None:
    world = await make_world()
    with pytest.raises(TooLarge, match="huge"):
        await world.create({**config_map("huge"), "kept": "x" * 1_500_000})


@asynchronous
async def test_only_the_service_writes_ledgers() -> None:
    world = await make_world()
    ledger = {"apiVersion": "kedge.dev/v1", "kind": "NodeAllocation", "metadata": {"name": "node-a"}}
    with pytest.raises(Forbidden):
        await world.create(ledger)


@asynchronous
async def test_defaults_are_those_of_kubernetes() -> None:
    world = await make_world()
    made = (await world.create(deployment())).edit()
    assert made["spec"]["strategy"]["type"] == "RollingUpdate"
    assert (await world.create(pod())).edit()["spec"]["restartPolicy"] == "Always"


@asynchronous
async def test_a_namespace_cannot_be_created_inside_another() -> None:
    world = await make_world()
    with pytest.raises(BadRequest, match="has no namespace"):
        await world.service.create(NAMESPACE, {"metadata": {"name": "inner"}}, namespace="default")
