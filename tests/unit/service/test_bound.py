"""What a bind makes of a pod's bytes: the quick way and the plain way say the same, and neither loses anything."""

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
from kedge.server.service.bound import bound

NOW = "2030-01-01T00:00:07Z"
RECORD = '{"decidedOn":{},"provedOn":{"Node/n":7}}'


def stored(body: dict[str, Any]) -> Object:
    body["metadata"].setdefault("generation", 3)
    body.setdefault("status", {"phase": "Pending"})
    return Object(POD, Key("Pod", "default", "web-0"), encode_object(body), revision=5)


def expected(before: bytes) -> Any:
    """In plain JSON, as the bind's contract says."""
    document = decode_json(before)
    document["metadata"]["annotations"] = {**(document["metadata"].get("annotations") or {}), BIND_ANNOTATION: RECORD}
    document["spec"]["nodeName"] = "node-a"
    scheduled = {"type": "PodScheduled", "status": "True", "observedGeneration": 3, "lastTransitionTime": NOW}
    status = document.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each["type"] != "PodScheduled"]
    document["status"] = {**status, "conditions": [*others, scheduled]}
    return document


def check(found: Object) -> bool:
    """Whether it was spliced; fails if the result is not what it must be."""
    value, view = bound(found, "node-a", RECORD, NOW)
    assert decode_json(value) == expected(found.value)
    assert value.startswith(b'{"apiVersion":"v1","kind":"Pod","metadata":{')
    if view is not None:
        assert view == decode_view(POD, value)
    return view is not None


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
    value, view = bound(found, "node-a", RECORD, NOW)
    assert view is None
    (scheduled,) = decode_json(value)["status"]["conditions"]
    assert (scheduled["status"], scheduled["lastTransitionTime"]) == ("True", NOW)


def test_a_name_spelt_by_escapes_is_no_second_node_name() -> None:
    body = encode_object({**pod(), "status": {"phase": "Pending"}})
    sly = body.replace(b'"spec":{', b'"spec":{"node\\u004eame":"",')
    value, view = bound(Object(POD, Key("Pod", "default", "web-0"), sly, revision=5), "node-a", RECORD, NOW)
    assert view is None
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
def test_whatever_else_a_pod_holds_stays_as_it_was(in_spec: Any, on_top: Any, label: str, first: bool) -> None:
    body = pod(unknown=in_spec)
    body["metadata"]["labels"]["x"] = label
    body["status"] = {"phase": "Pending"}
    body = {**({"more": on_top} if first else {}), **body, **({} if first else {"more": on_top})}
    check(stored(body))


def test_why_it_had_no_node_is_no_longer_said_of_a_pod_that_has_one() -> None:
    waited = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: 3 cpu"}
    body = {**pod("web-0"), "status": {"phase": "Pending", "conditions": [waited]}}
    document = decode_json(bound(stored(body), "node-a", RECORD, NOW)[0])
    (scheduled,) = document["status"]["conditions"]
    assert scheduled["status"] == "True"
    assert scheduled.keys().isdisjoint({"reason", "message"})
