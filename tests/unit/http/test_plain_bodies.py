"""Bodies with a spec that was sent before: a body is plain only if reading all of it finds nothing to report."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.random_bodies import TABLE, body_of
from tests.kit.raw_http import sent

from kedge.api.codec import OBJECT_DEPTH_MAX, encode_json, parse_object
from kedge.api.kinds import KINDS
from kedge.server.http.bodies import unknown_fields
from kedge.server.http.create_warnings import create_warnings
from kedge.server.http.duplicates import duplicates_in_json
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.fast.plain_bodies import plain_body

POD = KINDS.of_key_kind("Pod")
PODS = "/api/v1/namespaces/default/pods"
SPEC = {
    "containers": [
        {"name": "main", "image": "none", "command": ["sleep", "1"], "ports": [{"containerPort": 80, "hostPort": 80}]}
    ]
}


def looked_at(body: bytes, kind: Any = POD, content_type: bytes = b"application/json") -> tuple[str, ...] | None:
    facts = TABLE.of_kind(kind.api_version, kind.kind)
    assert facts is not None
    return plain_body(HttpRequest("POST", headers={b"content-type": content_type}, body=body), kind, facts, TABLE)


def pod_json(**more: Any) -> bytes:
    return encode_json({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": SPEC, **more})


def damaged(body: bytes, rng: Random) -> bytes:
    """The body with a change that a client could make: a space, a field that stands twice, an escape, a cut."""
    place = rng.choice([at for at, each in enumerate(body) if each in b"{,:[]}"])
    match rng.randrange(6):
        case 0:
            return body[: place + 1] + b" " + body[place + 1 :]
        case 1:
            return body.replace(b'"metadata":', b'"metadata":{},"metadata":', 1)
        case 2:
            return body.replace(b'"name":', b'"name":"x","name":', 1)
        case 3:
            return body.replace(b"a", rb"\u0061", 1)
        case 4:
            return body[:place]
        case _:
            return body + b"\n"


@pytest.mark.parametrize("kind", [each for each in KINDS if each.key_kind in ("Pod", "Service", "Deployment.apps")])
def test_a_body_is_plain_only_if_reading_all_of_it_finds_nothing(kind: Any) -> None:
    facts = TABLE.of_kind(kind.api_version, kind.kind)
    assert facts is not None
    seen = {True: 0, False: 0}
    for seed in range(400):
        rng = Random(seed)
        body = encode_json(body_of(facts, rng, 4, strange=0.0 if seed % 3 == 0 else 0.05))
        if seed % 2:
            body = damaged(body, rng)
        found = looked_at(body, kind)
        seen[found is not None] += 1
        if found is not None:
            decoded = parse_object(body)
            assert unknown_fields(decoded, facts, TABLE) == []
            assert list(duplicates_in_json(body, decoded)) == []
            assert found == create_warnings(kind, decoded)
            assert encode_json(decoded) == body.rstrip(b"\n")
    assert seen[True] > 20
    assert seen[False] > 20


def test_the_pod_of_a_client_is_plain_with_its_warnings() -> None:
    found = looked_at(pod_json() + b"\n")
    assert found is not None
    assert any("hostPort 80 is reserved" in each for each in found)
    assert looked_at(pod_json(), content_type=b"application/yaml") is None


def test_a_field_that_stands_twice_is_found_where_other_parts_grow_as_much() -> None:
    """Encoded again, `1e5` is `1E+5`: as many of these as the second field has bytes keep the length."""
    notes = b",".join(b'"%c":1e5' % each for each in b"abcdefghijk")
    assert looked_at(pod_json()) is not None
    twice = pod_json().replace(b'"name":"a"', b'"name":"a","name":"a","annotations":{%b}' % notes, 1)
    assert len(encode_json(parse_object(twice))) == len(twice)
    assert looked_at(twice) is None


@pytest.mark.parametrize("place", ["metadata", "spec"])
def test_a_body_at_the_limit_of_depth_is_not_plain(place: str) -> None:
    for levels in range(OBJECT_DEPTH_MAX - 4, OBJECT_DEPTH_MAX + 3):
        deep = b"[" * levels + b"]" * levels
        body = pod_json().replace(b'"name":"a"', b'"name":"a","labels":%b' % deep, 1)
        if place == "spec":
            body = pod_json().replace(b'"command":', b'"args":%b,"command":' % deep, 1)
        try:
            parse_object(body)
        except Exception:  # noqa: BLE001
            assert looked_at(body) is None


@on_loop
async def test_a_second_pod_like_the_first_is_stored_and_warned_about_alike() -> None:
    async with local_api() as (_, port):
        await sent(port, "POST", "/api/v1/namespaces", b'{"metadata":{"name":"default"}}')
        replies = []
        spaced = json.dumps(json.loads(web("c")), indent=1).encode()
        for body in (web("a"), web("b"), spaced):
            code, head, made = await sent(port, "POST", PODS, body)
            warnings = [line for line in head.splitlines() if line.startswith("Warning")]
            assert (code, made["metadata"]["labels"]) == (201, {"app": "web"})
            replies.append((warnings, made["spec"]))
        assert replies[0][0]
        assert replies == [replies[0]] * 3


def web(name: str) -> bytes:
    return pod_json(metadata={"name": name, "labels": {"app": "web"}})
