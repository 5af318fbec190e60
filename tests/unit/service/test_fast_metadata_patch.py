"""The fast patch of labels and annotations has the result of the plain patch."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import CONFIG_MAP, NODE, POD, asynchronous, config_map, deployment, make_world, node, pod

from kedge.api.codec import decode_json, encode_object
from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.requests import Patch, PatchType, WriteOptions
from kedge.api.views import decode_view
from kedge.errors import OperatingError
from kedge.keys import NO_ORIGIN, Key, Origin
from kedge.server.service import AdmissionChain, FunctionPolicy
from kedge.server.service.fast.metadata_patch import patch_metadata
from kedge.store import Put

UID = "uid-of-it"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u1", "controller": True}
KNOWN = {"name": "it", "namespace": "default", "uid": UID, "creationTimestamp": "2030-01-01T00:00:00Z", "generation": 3}
DELETED = {"deletionTimestamp": "2030-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
FULL_SPEC = {
    "containers": [{"name": "main", "image": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
    "restartPolicy": "Always", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
}  # fmt: skip

metadata_parts: tuple[dict[str, Any], ...] = (
    {},
    {"labels": {"app": "web"}},
    {"labels": {}, "annotations": {}},
    {"annotations": {"a": "b", "c": 'with "quotes", \\ and é'}},
    {"annotations": None},
    {"annotations": {"a": "b"}, "labels": {"app": "web", "tier": "one"}, "ownerReferences": [OWNER]},
    {"finalizers": ["example/wait"]},
    {"finalizers": ["example/wait"], **DELETED},
    {"generateName": "web-", "more": 1},
)
rests: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Pod", {"spec": FULL_SPEC, "status": {"phase": "Pending"}}),
    ("Pod", {"spec": FULL_SPEC, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    ("Pod", {"spec": FULL_SPEC | {"nodeName": "node-a"}, "status": {"phase": "Succeeded"}}),
    ("Pod", {"spec": FULL_SPEC | {"metadata": {"name": 1}}, "status": {}}),
    ("Pod", {"spec": {"containers": [{"name": "main", "image": "a"}]}}),  # stored before kedge knew its defaults
    ("Pod", {"spec": None}),
    ("Pod", {}),
    ("ConfigMap", {"data": {"metadata": '{"labels":{}}'}, "binaryData": {"a": "YQ=="}}),
    ("ConfigMap", {"data": {"a": "b"}, "immutable": True}),
    ("ConfigMap", {"data": {"not a key": "b"}}),
    ("ConfigMap", {"data": None, "more": [1, 1.50, {"metadata": {}}]}),
    ("Secret", {"data": {"a": "YQ=="}}),
    ("ResourceQuota", {"spec": {"hard": {"pods": "3"}}, "status": {"used": {"pods": "1"}}}),
    ("Lease.coordination.k8s.io", {"spec": {"holderIdentity": "a", "leaseTransitions": 1}}),
)
texts = st.sampled_from(("a", "c", "app", "example/changed", "tier"))
values = st.sampled_from(("b", "web", "", "é", None))
changes = st.dictionaries(texts, values, max_size=3)
usual = st.fixed_dictionaries(
    {},
    optional={
        "annotations": changes,
        "labels": changes,
        "resourceVersion": st.sampled_from(("", "2", "1")),
        "uid": st.sampled_from((UID, "other")),
    },
)
odd_changes = st.dictionaries(texts | st.just("not a key"), values | st.sampled_from(("not a value!", 1, True, {}, [])))
odd = st.fixed_dictionaries(
    {},
    optional={
        "annotations": odd_changes | st.sampled_from((None, {}, [], "x", 7)),
        "labels": odd_changes | st.sampled_from((None, {}, [], "x", 7)),
        "resourceVersion": st.sampled_from(("x", None, 2)),
        "uid": st.sampled_from(("", None)),
        "name": st.sampled_from(("it", "other")),
        "finalizers": st.sampled_from(([], ["example/other"])),
        "generation": st.just(9),
    },
)
besides: tuple[dict[str, Any], ...] = ({}, {"spec": {}}, {"data": {"a": "c"}}, {"status": None}, {"kind": "Pod"})
bodies = st.one_of(
    usual.map(lambda metadata: {"metadata": metadata}),
    st.tuples(usual | odd, st.sampled_from(besides)).map(lambda both: {"metadata": both[0], **both[1]}),
)

PLAIN = AdmissionChain(validating=[FunctionPolicy("allows everything", kinds=[each.key_kind for each in KINDS])])
"""With a policy, a patch takes the plain path."""


def stored(name: str, metadata: dict[str, Any], rest: dict[str, Any]) -> tuple[Kind, Key, bytes]:
    kind = KINDS.of_key_kind(name)
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": KNOWN | metadata, **rest}
    return kind, Key(name, "default", "it"), encode_object(copy.deepcopy(body))


async def outcome(key: Key, value: bytes, body: Any, operation: str, admission: AdmissionChain | None) -> Any:
    """The result of a patch of an object that was stored as `value`, by whatever version of kedge."""
    world = await make_world(admission=admission)
    await world.store.commit([], [Put(key, value)])
    options = WriteOptions(origin=Origin(operation, "") if operation else NO_ORIGIN)
    try:
        written = await world.service.send(Patch(key, body, options=options))
    except OperatingError as error:
        return type(error), error.message
    if written.removed:
        return "removed", written.warnings
    found = await world.get(key)
    assert found.value == written.object.value
    if written.object.kind.view is not None:
        assert written.object.view == decode_view(written.object.kind, found.value)
    return decode_json(found.json()), written.warnings


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(rests), st.sampled_from(metadata_parts), bodies, st.booleans(), st.sampled_from(("", "op-1")))
def test_the_fast_patch_has_the_result_of_the_plain_patch(
    rest: tuple[str, dict[str, Any]], metadata: dict[str, Any], body: Any, encoded: bool, operation: str
) -> None:
    _, key, value = stored(rest[0], metadata, rest[1])
    sent = msgspec.json.encode(body) if encoded else body

    async def both() -> None:
        fast, plain = (
            await outcome(key, value, sent, operation, None),
            await outcome(key, value, sent, operation, PLAIN),
        )
        assert fast == plain

    asyncio.run(both())


def fast(body: Any, *, name: str = "Pod", rest: dict[str, Any] | None = None, **request: Any) -> Any:
    kind, key, value = stored(name, {"labels": {"app": "web"}}, rest or {"spec": FULL_SPEC, "status": {}})
    old = Object(kind, key, value, revision=7)
    made = patch_metadata(kind, old, Patch(key, body, **request))
    return None if made is None else decode_json(made[0].value)["metadata"]


CHANGE = {"metadata": {"annotations": {"a": "b"}, "labels": {"app": None}}}


@pytest.mark.parametrize("body", [CHANGE, msgspec.json.encode(CHANGE)], ids=["decoded", "encoded"])
def test_labels_and_annotations_take_the_fast_path(body: Any) -> None:
    assert fast(body) == KNOWN | {"annotations": {"a": "b"}}
    assert fast(body, name="ConfigMap", rest={"data": {"a": "b"}}) == KNOWN | {"annotations": {"a": "b"}}


@pytest.mark.parametrize("version", [{"resourceVersion": "7"}, {"uid": UID}], ids=str)
def test_the_version_that_is_stored_may_be_named(version: dict[str, str]) -> None:
    assert fast({"metadata": CHANGE["metadata"] | version}) is not None


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {**CHANGE["metadata"], "resourceVersion": "6"}},
        {"metadata": {**CHANGE["metadata"], "uid": "other"}},
        {"metadata": {**CHANGE["metadata"], "finalizers": []}},
        {"metadata": {"labels": {"app": "web"}}},
        {"metadata": {"labels": {"app": "not a value!"}}},
        {"metadata": {"annotations": None}},
        {**CHANGE, "spec": {}},
        b"{",
    ],
    ids=str,
)
def test_any_other_patch_takes_the_plain_path(body: Any) -> None:
    assert fast(body) is None


def test_a_patch_of_another_type_or_of_a_subresource_takes_the_plain_path() -> None:
    assert fast(CHANGE, patch_type=PatchType.STRATEGIC) is None
    assert fast(CHANGE, subresource="status") is None


def test_a_pod_whose_defaults_are_missing_takes_the_plain_path() -> None:
    assert fast(CHANGE, rest={"spec": {"containers": [{"name": "main", "image": "a"}]}}) is None


def test_a_kind_with_defaults_takes_the_plain_path() -> None:
    assert fast(CHANGE, name="Secret", rest={"data": {}}) is None


@pytest.mark.parametrize(
    ("kind", "body"), [(POD, pod()), (CONFIG_MAP, config_map()), (NODE, node())], ids=("pod", "config map", "node")
)
@asynchronous
async def test_the_bytes_of_an_object_as_created_stay_but_for_its_metadata(kind: Kind, body: dict[str, Any]) -> None:
    results = []
    for admission in (None, PLAIN):
        world = await make_world(admission=admission)
        found = await world.create(body)
        assert (patch_metadata(kind, found, Patch(found.key, CHANGE)) is not None) is (found.key.kind == kind.key_kind)
        results.append((await world.service.send(Patch(found.key, CHANGE))).object.value)
    assert results[0] == results[1]


@asynchronous
async def test_a_deployment_takes_the_plain_path() -> None:
    world = await make_world()
    found = await world.create(deployment())
    assert patch_metadata(found.kind, found, Patch(found.key, CHANGE)) is None
