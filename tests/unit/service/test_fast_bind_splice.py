"""A bound pod's bytes: the splice and the plain path agree, and neither loses a field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects import POD, pod

from kedge.api.codec import decode_json, encode_object
from kedge.api.objects import Object
from kedge.api.views.decode import decode_view
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.keys import Key
from kedge.server.service.bound_pod import bound_pod
from kedge.server.service.fast.bind_splice import splice_bind

NOW = "2030-01-01T00:00:07Z"
RECORD = '{"decidedOn":{},"provedOn":{"Node/n":7}}'


def stored(body: dict[str, Any]) -> Object:
    body["metadata"].setdefault("generation", 3)
    body.setdefault("status", {"phase": "Pending"})
    return Object(POD, Key("Pod", "default", "web-0"), encode_object(body), revision=5)


def expected(before: bytes) -> Any:
    """In plain JSON, by the contract of the bind."""
    document = decode_json(before)
    document["metadata"]["annotations"] = {**(document["metadata"].get("annotations") or {}), BIND_ANNOTATION: RECORD}
    document["spec"]["nodeName"] = "node-a"
    scheduled = {"type": "PodScheduled", "status": "True", "observedGeneration": 3, "lastTransitionTime": NOW}
    status = document.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each["type"] != "PodScheduled"]
    document["status"] = {**status, "conditions": [*others, scheduled]}
    return document


def check(found: Object) -> bool:
    """Whether it was spliced; fails unless both paths have the expected result."""
    plain = bound_pod(found, "node-a", RECORD, NOW)
    assert decode_json(plain) == expected(found.value)
    assert plain.startswith(b'{"apiVersion":"v1","kind":"Pod","metadata":{')
    spliced = splice_bind(found, "node-a", RECORD, NOW)
    if spliced is None:
        return False
    value, view = spliced
    assert decode_json(value) == decode_json(plain)
    assert value.startswith(b'{"apiVersion":"v1","kind":"Pod","metadata":{')
    assert view == decode_view(POD, value)
    return True


def test_a_pod_as_created_is_spliced_and_its_view_is_that_of_its_bytes() -> None:
    assert check(stored(pod()))
    labelled = pod(nodeSelector={"a": "b"}, tolerations=[{"key": "x", "operator": "Exists"}])
    labelled["metadata"]["labels"] = {"app": '"spec":{"', "tier": "status"}
    assert check(stored(labelled))


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"a": "b"}},
        {"annotations": None},
        {"annotations": {}},
    ],
)
def test_annotations_that_are_there_are_kept(change: dict[str, Any]) -> None:
    body = pod()
    body["metadata"].update(change)
    assert not check(stored(body))


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": ""},
        {"nodeName": None},
        {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"a": 1}}}}]},
        {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": None}}}]},
        {"unknown": {"nodeName": "other"}},
    ],
)
def test_a_key_that_is_found_twice_is_edited_in_the_right_place(spec: dict[str, Any]) -> None:
    assert not check(stored(pod(**spec)))


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        {"phase": "Pending", "conditions": None},
        {"phase": "Pending", "nominatedNodeName": "n"},
        {},
    ],
)
def test_a_status_that_was_written_to_is_edited(status: dict[str, Any]) -> None:
    found = stored({**pod(), "status": status})
    assert splice_bind(found, "node-a", RECORD, NOW) is None
    value = bound_pod(found, "node-a", RECORD, NOW)
    (scheduled,) = decode_json(value)["status"]["conditions"]
    assert (scheduled["status"], scheduled["lastTransitionTime"]) == ("True", NOW)


def test_a_name_spelt_by_escapes_is_no_second_node_name() -> None:
    body = encode_object({**pod(), "status": {"phase": "Pending"}})
    sly = body.replace(b'"spec":{', b'"spec":{"node\\u004eame":"",')
    found = Object(POD, Key("Pod", "default", "web-0"), sly, revision=5)
    assert splice_bind(found, "node-a", RECORD, NOW) is None
    value = bound_pod(found, "node-a", RECORD, NOW)
    assert value.count(b"ame") == body.count(b"ame") + 1
    assert decode_view(POD, value).spec.node_name == "node-a"  # type: ignore[attr-defined]


TEXTS = st.sampled_from(
    ['"spec":{', '"status":{"phase":"Pending"}', '"metadata":{', "nodeName", '"nodeName"', "a", "\\u"]
)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(0, 9),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["spec", "status", "metadata", "nodeName", "annotations", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(VALUES, VALUES, TEXTS, st.booleans())
def test_every_other_field_of_a_pod_is_kept(in_spec: Any, on_top: Any, label: str, first: bool) -> None:
    body = pod(unknown=in_spec)
    body["metadata"]["labels"]["x"] = label
    body["status"] = {"phase": "Pending"}
    body = {**({"more": on_top} if first else {}), **body, **({} if first else {"more": on_top})}
    check(stored(body))


def test_a_bound_pod_has_no_reason_for_being_unschedulable() -> None:
    waited = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: 3 cpu"}
    body = {**pod("web-0"), "status": {"phase": "Pending", "conditions": [waited]}}
    document = decode_json(bound_pod(stored(body), "node-a", RECORD, NOW))
    (scheduled,) = document["status"]["conditions"]
    assert scheduled["status"] == "True"
    assert scheduled.keys().isdisjoint({"reason", "message"})
