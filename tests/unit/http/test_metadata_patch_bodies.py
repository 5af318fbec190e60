"""Merge patches of metadata alone: one that is taken as such has nothing that the whole check would report."""

from __future__ import annotations

from random import Random

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.random_bodies import TABLE
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, sent

from kedge.api.codec import decode_json, encode_json
from kedge.api.kinds import KINDS
from kedge.server.http.bodies import unknown_fields
from kedge.server.http.duplicates import duplicates_in_json
from kedge.server.service.fast.metadata_patch import PATCH_BYTES_MAX, is_metadata_patch

PLAIN = (
    b'{"metadata":{"annotations":{"example/a":"x: y","b":null}}}',
    b'{ "metadata" : {"labels": {"a": ""},\n "annotations": {}, "uid": "u", "resourceVersion": "7"}}',
    b'{"metadata":{}}',
)
DOUBTFUL = (
    b'{"metadata":{"annotations":{"a":"1","a":"2"}}}',
    b'{"metadata":{"labels":{"a":"1"},"labels":{"a":"2"}}}',
    b'{"metadata":{"uid":"u","uid":"u"}}',
    b'{"metadata":{"labels":{}},"metadata":{"labels":{}}}',
    rb'{"metadata":{"annotations":{"a":"1","a":"\u003a"}}}',
    b'{"metadata":{"uid":""}}',
    b'{"metadata":{"annotations":null}}',
    b'{"metadata":{"annotations":{"a":1}}}',
    b'{"metadata":{"annotation":{"a":"1"}}}',
    b'{"metadata":{"name":"a"}}',
    b'{"metadata":{"labels":{}},"spec":{}}',
    b'{"metadata":{"labels":{"a":"\xff"}}}',
    b'[{"metadata":{}}]',
    b'{"metadata":{"labels":{}}',
    b"",
)


@pytest.mark.parametrize("body", PLAIN)
def test_a_patch_of_metadata_is_known_at_once(body: bytes) -> None:
    assert is_metadata_patch(body)


@pytest.mark.parametrize("body", DOUBTFUL)
def test_any_doubt_leads_to_the_whole_check(body: bytes) -> None:
    assert not is_metadata_patch(body)


def test_a_long_patch_takes_the_whole_check() -> None:
    filled = b'{"metadata":{"labels":{"a":"%b"}}}'
    assert is_metadata_patch(filled % (b"x" * (PATCH_BYTES_MAX - len(filled) + 2)))
    assert not is_metadata_patch(filled % (b"x" * PATCH_BYTES_MAX))


def test_the_whole_check_reports_nothing_about_a_patch_that_is_known() -> None:
    """Random edits of patches: a byte changed, a part repeated, cut out or moved."""
    rng = Random(7)
    facts = [TABLE.of_kind(each.api_version, each.kind) for each in KINDS]
    known = 0
    for _ in range(20_000):
        body = rng.choice((*PLAIN, *DOUBTFUL))
        for _ in range(rng.randrange(1, 4)):
            first, last = sorted(rng.randrange(len(body) + 1) for _ in range(2))
            part = rng.choice(
                (body[first:last], body[first:last] * 2, b"", rng.choice((b'"', b":", b",", b"\\", b" ")))
            )
            body = body[:first] + part + body[last:]
        if not is_metadata_patch(body):
            continue
        known += 1
        decoded = decode_json(body)
        assert not list(duplicates_in_json(body, decoded)), body
        assert not any(unknown_fields(decoded, each, TABLE, patch=True) for each in facts if each is not None), body
    assert known > 200


@on_loop
async def test_duplicate_annotations_of_a_patch_are_refused_over_http() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        at = f"{CONFIG_MAPS}/a?fieldValidation=Strict"
        code, _, status = await sent(port, "PATCH", at, DOUBTFUL[0], MERGE)
        assert (code, status["message"]) == (
            400, 'strict decoding error: duplicate field "metadata.annotations.a"',
        )  # fmt: skip
        code, head, changed = await sent(
            port, "PATCH", at, encode_json({"metadata": {"annotations": {"a": "2"}}}), MERGE
        )
        assert (code, changed["metadata"]["annotations"]) == (200, {"a": "2"})
        assert "Warning" not in head
