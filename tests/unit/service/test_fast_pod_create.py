"""The fast create of a pod like others before it has the result of the plain create."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import POD, asynchronous, make_env, make_world, pod, resource_quota

from kedge.api.codec import parse_object
from kedge.api.views import decode_view
from kedge.errors import Forbidden, OperatingError
from kedge.server.service import AdmissionChain, FunctionPolicy
from kedge.server.service.fast.pod_create import new_known_pod

NOW = "2030-01-01T00:00:00Z"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u1", "controller": True}

metadata_parts: dict[str, tuple[Any, ...]] = {
    "name": ("web-1", "", "No", 7, None, "é"),
    "namespace": ("default", "other", "", None, 3),
    "generateName": ("web-", ""),
    "labels": ({}, None, {"app": "web"}, {"app": "not a value"}, {"app": 1}, []),
    "annotations": ({}, None, {"a": "b"}, {"a": 'with "quotes" and \\'}, {"a": "é"}, {"not a key": "b"}, {"a": 1}),
    "ownerReferences": ([], [OWNER], [OWNER, OWNER | {"name": "two"}], [OWNER | {"more": 1}], [{}], None),
    "finalizers": ([], ["a/b"], ["not one!"], None, ["orphan", "foregroundDeletion"]),
    "uid": ("mine", None, 1),
    "generation": (9, -1, "x", None),
    "creationTimestamp": (None, "1999-01-01T00:00:00Z", "never"),
    "deletionTimestamp": ("1999-01-01T00:00:00Z", None),
    "deletionGracePeriodSeconds": (5, None),
    "resourceVersion": ("", "7"),
    "managedFields": ([],),
    "selfLink": ("/x",),
    "more": (1,),
}
spec_parts: dict[str, tuple[Any, ...]] = {
    "containers": ([], None, [{"name": "main"}]),
    "nodeName": ("node-a", ""),
    "restartPolicy": ("Never", "", None, "Sometimes"),
    "terminationGracePeriodSeconds": (0, None, -1, 2**63, 1.5),
    "hostNetwork": (True, "yes"),
    "resources": ({}, {"requests": {"memory": "16Gi"}}, {"requests": {"memory": "1Mi"}}, {"requests": 1}, None),
    "dnsPolicy": ("ClusterFirst",),
}
top_parts: dict[str, tuple[Any, ...]] = {
    "apiVersion": ("v1", "v2", "", None, 1),
    "kind": ("Pod", "Node", "", None),
    "metadata": (None, {}, []),
    "spec": (None, {}, [], "x"),
    "status": (None, {}, {"phase": "Running"}, {"more": 1}, 3),
    "more": (1,),
}


def changes_of(place: str, parts: dict[str, tuple[Any, ...]]) -> list[tuple[str, str, Any]]:
    return [(place, field, value) for field, values in parts.items() for value in values]


changes = st.sampled_from(
    changes_of("metadata", metadata_parts) + changes_of("spec", spec_parts) + changes_of("", top_parts)
)


def changed(edits: list[tuple[str, str, Any]]) -> bytes:
    body = pod()
    for place, field, value in edits:
        part = body[place] if place else body
        if isinstance(part, dict):
            part[field] = copy.deepcopy(value)
    return msgspec.json.encode(body)


async def outcome(body: bytes, namespace: str, admission: AdmissionChain | None) -> Any:
    """The result of a create, without the uid."""
    world = await make_world(admission=admission)
    try:
        written = await world.service.create(POD, body, namespace=namespace)
    except OperatingError as error:
        return type(error), error.message
    found = written.object.edit()
    assert found["metadata"].pop("uid") == written.object.uid != "mine"
    assert (await world.get(written.object.key)).value == written.object.value
    assert written.object.view == decode_view(POD, written.object.value)
    return found, written.warnings


PLAIN = AdmissionChain(validating=[FunctionPolicy("allows everything", kinds=["Pod"])])
"""With a policy, a create takes the plain path."""


@settings(max_examples=300, deadline=None)
@given(st.lists(changes, max_size=3), st.sampled_from(("", "default", "other")))
def test_the_fast_create_has_the_result_of_the_plain_create(edits: list[tuple[str, str, Any]], namespace: str) -> None:
    body = changed(edits)

    async def both() -> None:
        assert await outcome(body, namespace, None) == await outcome(body, namespace, PLAIN)

    asyncio.run(both())


def known(body: bytes) -> Any:
    return new_known_pod(POD, body, "", make_env().new_uid, NOW)


def test_replicas_take_the_fast_path_and_share_their_parts() -> None:
    first, second = known(msgspec.json.encode(pod("web-0"))), known(msgspec.json.encode(pod("web-1")))
    assert first[0].spec is second[0].spec
    assert first[0].metadata.labels is second[0].metadata.labels
    assert parse_object(first[1])["spec"]["schedulerName"] == "default-scheduler"
    assert second[0] == decode_view(POD, second[1])


def test_a_pod_without_a_kind_takes_the_fast_path_and_is_stored_as_a_pod() -> None:
    body = {name: part for name, part in pod("web-0").items() if name not in ("apiVersion", "kind")}
    stored = parse_object(known(msgspec.json.encode(body))[1])
    assert (stored["apiVersion"], stored["kind"]) == ("v1", "Pod")


@pytest.mark.parametrize(
    "junk",
    [b'"\xff"', b'{"phase": "\xc3\x28"}'],
    ids=["status is a bad string", "status holds a bad string"],
)
def test_a_part_that_stays_undecoded_must_be_utf_8(junk: bytes) -> None:
    body = msgspec.json.encode(pod() | {"status": msgspec.Raw(junk)})
    assert known(body) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Web"},
        {"name": "web-"},
        {"name": ""},
        {"namespace": "Default"},
        {"namespace": ""},
        {"namespace": "a.b"},
    ],
    ids=str,
)
def test_an_invalid_name_takes_the_plain_path_which_reports_it(wrong: dict[str, str]) -> None:
    body = pod()
    body["metadata"] |= wrong
    assert known(msgspec.json.encode(body)) is None


def test_a_large_pod_is_not_remembered() -> None:
    body = pod()
    body["metadata"]["annotations"] = {"note": "x" * 10_000}
    assert known(msgspec.json.encode(body)) is None


def test_a_member_that_is_sent_twice_is_stored_once() -> None:
    body = msgspec.json.encode(pod()).replace(b'"labels":{', b'"labels":{"app":"old",')
    found = known(body)
    assert found[1].count(b'"app"') == 1
    assert found[0].metadata.labels == {"app": "web"}


@asynchronous
async def test_a_plain_pod_is_charged_to_a_quota_created_after_its_siblings() -> None:
    world = await make_world()
    await world.create(pod("web-0"))
    await world.create(resource_quota(pods="2"))
    await world.create(pod("web-1"))
    with pytest.raises(Forbidden, match="exceeded quota"):
        await world.create(pod("web-2"))
