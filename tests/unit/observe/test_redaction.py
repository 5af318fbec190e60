"""Fields that a user names are hidden in a recording: in objects and in requests, equal values alike."""

from __future__ import annotations

import json

import pytest
from tests.kit.records import call, decision, made, read

from kedge.errors import BadRequest
from kedge.kept import parse_section
from kedge.observe.readers.recording import decode_recording
from kedge.observe.records import CacheRead, Call, RecordEncoder, parse_redacted

PLANTED = "planted-in-a-config-map"
APPLIED = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"data": {"a": PLANTED}})}}
CONFIG = made("ConfigMap", "c", 3, data={"a": PLANTED, "b": PLANTED, "c": "another"}, metadata=APPLIED)
POD = made("Pod", "p", 4, spec={"containers": [{"name": "main", "env": [{"name": "X", "value": PLANTED}]}]})


def frames(*rules: str, key: bytes = b"k") -> list[bytes]:
    encoder = RecordEncoder(hiding_key=key, redact=[parse_redacted(each) for each in rules])
    created = call("create", CONFIG.key, {"kind": "ConfigMap", "data": {"a": PLANTED}})
    unnamed = call("create", None, {"kind": "ConfigMap", "data": {"a": PLANTED}})
    made_pod = call("create", POD.key, POD.edit())
    return encoder.decision(decision("d", [read(CONFIG, POD), created, unnamed, made_pod])) or []


def encode(*rules: str) -> bytes:
    return b"".join(frames(*rules))


def seen_data(key: bytes) -> list[dict[str, str]]:
    """The data of the ConfigMap as it was read, and in the request that made it."""
    steps = decode_recording(map(parse_section, frames("ConfigMap:data", key=key))).decisions[0].steps
    first, second = steps[0], steps[1]
    assert isinstance(first, CacheRead)
    assert isinstance(second, Call)
    return [first.objects[0].edit()["data"], second.intent["data"]]


def test_without_a_rule_the_values_are_there() -> None:
    assert encode().count(PLANTED.encode()) > 5


def test_a_rule_hides_a_field_of_a_kind_everywhere() -> None:
    left = encode("ConfigMap:data", "*:env.value")
    assert PLANTED.encode() not in left
    assert b"main" in left, "other fields stay"


def test_a_rule_of_one_kind_leaves_the_others() -> None:
    assert encode("ConfigMap:data").count(PLANTED.encode()) == 2, "the pod that was read, and the one that was made"


def test_equal_values_stay_equal_and_different_ones_different() -> None:
    shown, sent = seen_data(b"k")
    assert shown["a"] == shown["b"] == sent["a"] != shown["c"]
    assert seen_data(b"another")[0]["a"] != shown["a"], "the key of the hash is not known to a reader"


@pytest.mark.parametrize("text", ["", "ConfigMap", "ConfigMap:", ":data", "ConfigMap:data..x"])
def test_a_malformed_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match="ConfigMap:data"):
        parse_redacted(text)
