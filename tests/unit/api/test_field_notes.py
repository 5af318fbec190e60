"""Noted objects: which fields a reader touched, and that a noted object is the plain one in every other respect."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from typing import Any

import msgspec
import pytest

from kedge.api.codec import encode_object
from kedge.api.conditions import is_true
from kedge.api.field_notes import FieldNotes, plain_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.selectors import parse_label_selector
from kedge.api.views import PodView
from kedge.errors import InvariantBroken
from kedge.keys import Key

BODY: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "default",
        "uid": "u-1",
        "labels": {"app": "web", "tier": "front"},
        "annotations": {"example.org/note": "yes"},
    },
    "spec": {"nodeName": "a", "containers": [{"name": "main", "image": "app:1"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def pod(name: str = "web-0") -> Object:
    return Object(KINDS.of_key_kind("Pod"), Key("Pod", "default", name), encode_object(BODY), revision=7)


def noted() -> tuple[FieldNotes, Any]:
    notes = FieldNotes(16)
    return notes, notes.wrap(pod())


def test_each_field_that_is_read_is_noted_once_two_levels_deep() -> None:
    notes, found = noted()
    assert found.view.spec.node_name == "a"
    assert found.as_view(PodView).spec.containers[0].image == "app:1"
    assert is_true(found.view.status.conditions, "Ready")
    assert found.view.spec.node_name == "a"
    assert notes.touched() == {"Pod": ("spec.containers", "spec.nodeName", "status.conditions")}


def test_a_reader_of_nothing_touches_nothing_and_identity_is_no_field() -> None:
    notes, found = noted()
    assert (found.key.name, found.uid, found.revision, found.view.name, found.metadata.generation) == (
        "web-0", "u-1", 7, "web-0", 0,
    )  # fmt: skip
    assert not found.view.terminating
    assert notes.touched() == {}


def test_labels_and_annotations_are_noted_by_key_and_a_walk_notes_all() -> None:
    notes, found = noted()
    assert found.metadata.labels.get("app") == "web"
    assert "absent" not in found.view.metadata.annotations
    assert parse_label_selector("tier in (front)").matches(found.metadata.labels)
    assert notes.touched() == {"Pod": ("metadata.annotations.absent", "metadata.labels.app", "metadata.labels.tier")}
    assert dict(found.metadata.labels) == BODY["metadata"]["labels"]
    assert "metadata.labels.*" in notes.touched()["Pod"]


def test_a_property_of_a_view_notes_the_fields_that_it_reads() -> None:
    notes, found = noted()
    assert not found.view.finished
    assert "status.phase" in notes.touched()["Pod"]


def test_an_edited_document_notes_lookups_and_is_a_plain_dict_for_everything_else() -> None:
    notes, found = noted()
    document = found.edit()
    assert document["spec"]["nodeName"] == "a"
    assert document["metadata"]["labels"].get("app") == "web"
    assert notes.touched() == {"Pod": ("metadata.labels.app", "spec.nodeName")}
    assert document == BODY
    assert json.loads(json.dumps(document)) == msgspec.json.decode(msgspec.json.encode(document)) == BODY
    assert copy.deepcopy(document) == BODY
    document["spec"]["nodeName"] = "b"
    assert found.view.spec.node_name == "a"
    assert json.loads(encode_object(document))["spec"]["nodeName"] == "b"


def test_the_bytes_of_an_object_are_the_whole_object() -> None:
    notes, found = noted()
    assert json.loads(found.json())["spec"]["nodeName"] == "a"
    assert notes.touched() == {"Pod": ("*",)}


def test_a_noted_view_equals_and_encodes_as_the_plain_one() -> None:
    _, found = noted()
    plain = pod().view
    assert found.view == plain
    assert plain == found.view
    assert found.view.spec == plain.spec
    assert plain.status == found.view.status
    assert found.view.spec != msgspec.structs.replace(plain.spec, node_name="b")
    assert hash(found.view.spec) == hash(plain.spec)
    assert msgspec.json.encode(found.view) == msgspec.json.encode(plain)
    assert msgspec.structs.replace(found.view.spec, node_name="b").node_name == "b"
    assert found.metadata.labels == plain.metadata.labels
    with pytest.raises(TypeError, match="cannot be changed"):
        found.metadata.labels["app"] = "other"
    with pytest.raises(InvariantBroken):
        found.as_view(str)


def test_an_object_that_is_read_twice_stays_one_object() -> None:
    notes = FieldNotes(2)
    pods = tuple(pod(f"web-{number}") for number in range(4))
    first = notes.wrap_all(pods)
    again = notes.wrap_all(pods[::-1])[::-1]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert [plain_object(each) is each for each in first] == [False, False, True, True]
    assert [plain_object(each) for each in first] == list(pods)


def test_the_objects_of_an_ended_decision_are_let_go() -> None:
    class Owner(FieldNotes):
        """With a weak reference, to see its end."""

    notes = Owner(16)
    notes.wrap(pod()).view.spec.node_name  # noqa: B018  touched
    gone = weakref.ref(notes)
    notes.close()
    del notes
    gc.collect()
    assert gone() is None
