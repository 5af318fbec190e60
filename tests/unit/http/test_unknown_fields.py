"""Unknown fields are found wherever they stand, and a body without one costs one quick look."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.kit.random_bodies import TABLE, body_of

from kedge.api.kinds import KINDS
from kedge.server.http.bodies import _unknown, all_known, unknown_fields


@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: kind.kind)
def test_the_quick_look_never_misses_a_field_that_the_walk_reports(kind: Any) -> None:
    facts = TABLE.of_kind(kind.api_version, kind.kind)
    assert facts is not None
    seen = {True: 0, False: 0}
    for seed in range(60):
        body = body_of(facts, Random(seed), 4, strange=0.0 if seed % 3 == 0 else 0.1)
        walked = list(_unknown(body, facts, TABLE, "", patch=False))
        quick = all_known(body, facts, TABLE)
        assert not (quick and walked), body
        seen[quick] += 1
    assert seen[True] > 0


def test_a_field_is_named_by_its_place() -> None:
    facts = TABLE.of_kind("v1", "Pod")
    assert facts is not None
    body = {
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "a"}, {"nmae": "b"}], "volumes": [{"projected": {"sources": [{"x": 1}]}}]},
        "stauts": {},
    }
    assert unknown_fields(body, facts, TABLE) == [
        'unknown field "spec.containers[1].nmae"',
        'unknown field "spec.volumes[0].projected.sources[0].x"',
        'unknown field "stauts"',
    ]
