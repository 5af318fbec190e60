"""The patch that `apply` sends, held to the function that the server applies it with."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kedge.api.strategic_diff import plan_strategic_patch
from kedge.api.strategic_merge import apply_strategic_merge
from kedge.api.types import type_table

TABLE = type_table()
FACTS = TABLE.of_kind("v1", "Pod")
assert FACTS is not None

NAMES = st.sampled_from(["a", "b", "c"])
WORDS = st.sampled_from(["x", "y", "z"])
ENV = st.lists(st.fixed_dictionaries({"name": NAMES, "value": WORDS}), unique_by=lambda each: each["name"])
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES, "image": WORDS},
        optional={"env": ENV, "args": st.lists(WORDS, max_size=2), "workingDir": WORDS},
    ),
    unique_by=lambda each: str(each["name"]),
)
VOLUMES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": NAMES, "emptyDir": st.just({})}),
        st.fixed_dictionaries({"name": NAMES, "hostPath": st.fixed_dictionaries({"path": WORDS})}),
    ),
    unique_by=lambda each: str(each["name"]),
)
PODS = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({}, optional={"finalizers": st.lists(WORDS, unique=True)})},
    optional={
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": CONTAINERS,
                "volumes": VOLUMES,
                "nodeSelector": st.dictionaries(NAMES, WORDS),
                "tolerations": st.lists(st.fixed_dictionaries({"key": NAMES}), max_size=2),
                "hostNetwork": st.booleans(),
            },
        )
    },
)


def applied(last: dict[str, Any], wanted: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    assert FACTS is not None
    patch = plan_strategic_patch(last, wanted, live, FACTS, TABLE)
    return apply_strategic_merge(live, patch, FACTS, TABLE)


@given(PODS, PODS, PODS)
def test_a_second_apply_of_the_same_changes_nothing(last: Any, wanted: Any, live: Any) -> None:
    result = applied(last, wanted, live)
    assert plan_strategic_patch(wanted, wanted, result, FACTS, TABLE) == {}


@given(PODS, PODS)
def test_nothing_that_was_never_applied_is_removed(wanted: Any, live: Any) -> None:
    result = applied({}, wanted, live)
    assert live.get("spec", {}).keys() <= result.get("spec", {}).keys()
    for name in ("containers", "volumes"):
        before, after = ({each["name"] for each in pod.get("spec", {}).get(name, ())} for pod in (live, result))
        assert before <= after


@given(PODS, PODS)
def test_an_object_that_only_apply_wrote_becomes_what_is_applied(last: Any, wanted: Any) -> None:
    result = applied(last, wanted, last)
    assert without_empty(result) == without_empty(wanted)


def without_empty(value: Any) -> Any:
    """Empty lists and maps are the same as none after a merge: deletions leave them behind."""
    if isinstance(value, dict):
        parts = {name: without_empty(each) for name, each in value.items()}
        return {name: each for name, each in parts.items() if each not in ({}, [], None)}
    if isinstance(value, list):
        items = [without_empty(each) for each in value]
        return sorted(items, key=str) if items and isinstance(items[0], str) else items
    return value


def test_items_that_a_key_does_not_identify_are_replaced_together() -> None:
    ports = [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]
    live = {"spec": {"containers": [{"name": "a", "ports": ports[:1]}]}}
    wanted = {"spec": {"containers": [{"name": "a", "ports": ports}]}}
    assert applied({}, wanted, live)["spec"]["containers"][0]["ports"] == ports
