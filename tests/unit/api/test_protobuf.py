"""Protobuf bodies: each wire form as the Kubernetes clients write it, and garbage that is refused with a sentence."""

from __future__ import annotations

import base64
import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.protobuf import decode_protobuf
from kedge.errors import BadRequest


def varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, Any]) -> bytes:
    """Fields as (number, value): text and bytes with their length, numbers as varints, floats in eight bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            body = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(body)) + body
    return out


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + message((1, message((1, api_version), (2, kind))), (2, raw), (3, ""), (4, ""))


def test_a_deployment_of_kubectl_create_is_decoded() -> None:
    container = message((1, "nginx"), (2, "nginx:1"), (5, ""), (8, b""), (14, ""))
    template = message((1, message((11, message((1, "app"), (2, "web"))))), (2, message((2, container))))
    spec = message(
        (1, 3), (2, message((1, message((1, "app"), (2, "web"))))), (3, template), (4, message((1, ""))), (5, 0)
    )
    meta = message((1, "web"), (2, ""), (3, ""), (5, ""), (8, b""), (11, message((1, "app"), (2, "web"))))
    decoded = decode_protobuf(envelope("apps/v1", "Deployment", message((1, meta), (2, spec), (3, b""))))
    assert decoded == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:1", "resources": {}}]},
            },
            "strategy": {},
        },
        "status": {},
    }


@pytest.mark.parametrize("api_version", ["v1", "apps/v1", "meta.k8s.io/v1"])
def test_the_options_of_a_deletion_are_decoded_in_every_group(api_version: str) -> None:
    options = message((1, 0), (2, message((1, "uid-1"))), (4, "Foreground"), (5, "All"))
    assert decode_protobuf(envelope(api_version, "DeleteOptions", options)) == {
        "apiVersion": api_version,
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "uid-1"},
        "propagationPolicy": "Foreground",
        "dryRun": ["All"],
    }


def test_a_zero_that_differs_from_absent_is_kept() -> None:
    spec = message((1, 0))
    decoded = decode_protobuf(envelope("apps/v1", "Deployment", message((2, spec))))
    assert decoded["spec"]["replicas"] == 0


def test_quantities_times_ports_and_inline_types_are_decoded() -> None:
    resources = message((2, message((1, "cpu"), (2, message((1, "500m"))))))
    probe = message((1, message((2, message((1, "/ok"), (2, message((1, 1), (2, 0), (3, "http"))))))), (3, 5))
    container = message((1, "a"), (8, resources), (10, probe))
    volume = message((1, "v"), (2, message((2, message((1, "Memory"))))))
    meta = message((1, "p"), (8, message((1, 1_700_000_000), (2, 0))))
    spec = message((1, volume), (2, container), (5, 30))
    decoded = decode_protobuf(envelope("v1", "Pod", message((1, meta), (2, spec))))
    assert decoded["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert decoded["spec"]["volumes"] == [{"name": "v", "emptyDir": {"medium": "Memory"}}]
    (found,) = decoded["spec"]["containers"]
    assert found["resources"] == {"requests": {"cpu": "500m"}}
    assert found["livenessProbe"] == {"httpGet": {"path": "/ok", "port": "http"}, "timeoutSeconds": 5}


def test_bytes_are_base64_and_negative_numbers_are_negative() -> None:
    secret = message((1, message((1, "s"))), (2, message((1, "key"), (2, b"\x00\xff"))))
    decoded = decode_protobuf(envelope("v1", "Secret", secret))
    assert decoded["data"] == {"key": base64.b64encode(b"\x00\xff").decode()}
    decoded = decode_protobuf(envelope("scheduling.k8s.io/v1", "PriorityClass", message((2, -5))))
    assert decoded["value"] == -5


def test_a_micro_time_keeps_its_decimals() -> None:
    lease = message((2, message((3, message((1, 1_700_000_000), (2, 123_456_789))))))
    decoded = decode_protobuf(envelope("coordination.k8s.io/v1", "Lease", lease))
    assert decoded["spec"] == {"acquireTime": "2023-11-14T22:13:20.123456Z"}


def test_packed_and_unpacked_numbers_are_read_alike() -> None:
    context = message((4, 7), (4, 9))
    packed = message((4, varint(7) + varint(9)))
    for each in (context, packed):
        decoded = decode_protobuf(envelope("v1", "Pod", message((2, message((14, each))))))
        assert decoded["spec"]["securityContext"]["supplementalGroups"] == [7, 9]


def test_fields_of_a_newer_version_are_skipped() -> None:
    assert decode_protobuf(envelope("v1", "ConfigMap", message((999, "x"), (998, 1), (997, 1.5)))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "begin with the bytes"),
        (b"", "begin with the bytes"),
        (envelope("v9", "Nothing", b""), "send JSON"),
        (envelope("v1", "Pod", b"\x0a\xff"), "cut short"),
        (envelope("v1", "Pod", b"\x0b"), "wire type"),
        (envelope("v1", "Pod", b"\x80" * 30), "no end"),
        (envelope("v1", "ConfigMap", message((1, 7))), "damaged"),
        (envelope("v1", "ConfigMap", message((1, message((1, b"\xff"))))), "damaged"),
    ],
)
def test_a_damaged_body_is_a_bad_request(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        decode_protobuf(body)


@given(st.binary(max_size=200), st.sampled_from([("v1", "Pod"), ("apps/v1", "Deployment"), ("v1", "Secret")]))
def test_garbage_is_decoded_or_rejected(raw: bytes, kind: tuple[str, str]) -> None:
    with contextlib.suppress(BadRequest):
        assert decode_protobuf(envelope(*kind, raw))["kind"] == kind[1]


def test_deeply_nested_messages_are_rejected() -> None:
    schema = b""
    for _ in range(100):
        schema = message((28, schema))  # not: a schema
    with pytest.raises(BadRequest, match="nest deeper"):
        decode_protobuf(envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", wrap_schema(schema)))


def wrap_schema(schema: bytes) -> bytes:
    version = message((1, "v1"), (4, message((1, schema))))
    return message((2, message((7, version))))
