"""Records never have the values of Secrets: objects, bodies of requests and patches are written with hashes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.kit.encryption import PLANTED, forms_of

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.wellknown import LAST_APPLIED
from kedge.kept import parse_section
from kedge.keys import Key
from kedge.observe.records import CacheRead, Call, CommitRecord, Decision, RecordEncoder, RecordReader, encode_intent

KEY = Key("Secret", "default", "one")
AT = datetime(2026, 1, 1, tzinfo=UTC)


def secret(value: str = PLANTED, *, revision: int = 5) -> Object:
    encoded = base64.b64encode(value.encode()).decode()
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "one", "namespace": "default", "annotations": {LAST_APPLIED: f'{{"data":"{encoded}"}}'}},
        "data": {"password": encoded},
    }
    return Object(KINDS.of_key_kind("Secret"), KEY, encode_object(body), revision=revision, created=1)


def decision(*steps: Any) -> Decision:
    return Decision(
        id="test:1", controller="test", process="1", key=KEY, tenant="", priority=0, began=AT, steps=list(steps)
    )


def call(body: Any, key: Key | None = KEY, reply: tuple[Object, ...] = ()) -> Call:
    return Call("update", key, encode_intent(body), "", "", 0.0, 0.0, "done", reply=reply)


BODIES: list[tuple[Any, Key | None]] = [
    ({"kind": "Secret", "stringData": {"password": PLANTED}}, KEY),
    ({"kind": "Secret", "metadata": {"generateName": "a-"}, "stringData": {"password": PLANTED}}, None),
    ({"data": {"password": base64.b64encode(PLANTED.encode()).decode()}}, KEY),
    ({"metadata": {"annotations": {LAST_APPLIED: PLANTED}}}, KEY),
    ([{"op": "replace", "path": "/data/password", "value": PLANTED}], KEY),
    ([{"op": "add", "path": "/stringData", "value": {"password": PLANTED}}], KEY),
]


@pytest.mark.parametrize(("body", "key"), BODIES)
def test_a_recorded_request_has_no_value(body: Any, key: Key | None) -> None:
    written = b"".join(RecordEncoder(hiding_key=b"k").decision(decision(call(body, key))) or [])
    assert not any(form in written for form in forms_of(PLANTED))
    assert b"password" in written or b"annotations" in written, "names stay"


def test_recorded_objects_have_hashes_that_show_a_change() -> None:
    encoder, reader = RecordEncoder(hiding_key=b"k"), RecordReader()
    read = CacheRead("Secret", "get", ("default", "one"), 1, 5, 0.0, 5, (secret(),))
    sections = encoder.decision(decision(read, call({}, reply=(secret(revision=6),)))) or []
    sections += encoder.commit(CommitRecord(7, AT, (secret("another", revision=7),)))
    assert not any(form in b"".join(sections) for form in forms_of(PLANTED))
    found = [each for each in (reader.read(parse_section(each)) for each in sections) if each is not None]
    assert isinstance(found[0], Decision)
    assert isinstance(found[1], CommitRecord)
    first = found[0].steps[0].objects[0].edit()["data"]["password"]  # type: ignore[union-attr]
    second = found[0].steps[1].reply[0].edit()["data"]["password"]  # type: ignore[union-attr]
    third = found[1].written[0].edit()["data"]["password"]
    assert first == second != third
    assert base64.b64decode(first).startswith(b"hidden-")


def test_hashes_of_two_logs_differ_and_encoding_leaves_the_record_alone() -> None:
    record = decision(call({}, reply=(secret(),)))
    forms = [b"".join(RecordEncoder(hiding_key=key).decision(record) or []) for key in (b"k", b"other")]
    assert forms[0] != forms[1]
    assert record.steps[0].reply[0].value == secret().value  # type: ignore[union-attr]


def test_other_kinds_are_recorded_as_they_are() -> None:
    key = Key("ConfigMap", "default", "one")
    written = b"".join(RecordEncoder().decision(decision(call({"data": {"a": PLANTED}}, key))) or [])
    assert PLANTED.encode() in written
