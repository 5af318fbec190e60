"""The part of a recording that a user may see: nothing of a namespace or a kind that the user may not list."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kedge.observe.readers.recording import Recording
from kedge.sim.scenario import load_scenario, run_scenario
from kedge.ui import Documents
from kedge.ui.visible_part import folded_state, visible_part


@functools.cache
def recording() -> Recording:
    return run_scenario(load_scenario("pending-after-rollback"), keep=True).recording


def every_text(value: Any) -> str:
    return str(value)


def documents_for(may_list: Callable[[str, str], bool]) -> Documents:
    return Documents(visible_part(recording(), may_list))


def test_an_administrator_sees_everything() -> None:
    seen = visible_part(recording(), lambda _kind, _namespace: True)
    assert seen.decisions == recording().decisions
    assert seen.commits == recording().commits
    assert seen.received == recording().received


def test_a_stranger_sees_nothing() -> None:
    seen = visible_part(recording(), lambda _kind, _namespace: False)
    assert not seen.decisions
    assert not seen.commits
    assert not seen.received


def test_a_user_of_one_namespace_sees_its_pods_and_neither_nodes_nor_other_caches() -> None:
    found = documents_for(lambda kind, namespace: kind == "Pod" and namespace == "risk")
    place = found.document("place", {})
    assert {each["namespace"] for each in place["pods"]} == {"risk"}
    assert place["zones"] == []
    assert found.document("belief", {})["caches"] == []
    rows = found.document("decisions", {"limit": "5000"})["rows"]
    assert rows
    assert {each["key"].partition("/")[0] for each in rows} == {"Pod"}
    for row in rows:
        record = found.document("decision", {"id": row["id"]})
        assert record["scheduling"] is None
        assert record["inputs"] == []
        for step in record["steps"]:
            assert step.get("key", "Pod/risk/").startswith("Pod/risk/")
            assert all(each["key"].startswith("Pod/risk/") for each in step.get("objects", ()))


def test_a_folded_state_is_the_state_after_its_commits() -> None:
    commits = recording().commits
    half = len(commits) // 2
    folded = folded_state(recording().states[0], commits[:half])
    shorter = Documents(Recording(states=[folded], commits=commits[half:]))
    whole = Documents(recording())
    revision = str(commits[-1].revision)
    assert shorter.document("place", {"revision": revision}) | {"point": None} == whole.document(
        "place", {"revision": revision}
    ) | {"point": None}
