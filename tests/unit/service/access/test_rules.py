"""Rules of roles: what one allows, and what rules cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.access import wants

from kedge.api.access import Attributes
from kedge.api.views import PolicyRule
from kedge.errors import Forbidden
from kedge.server.service.access.rules import EVERYTHING, allows_kind_of, allows_path, missing_rules, rule_text


def resources(verbs: str, groups: str, names: str, *objects: str) -> PolicyRule:
    def words(text: str) -> tuple[str, ...]:
        return tuple("" if each == "core" else each for each in text.split())

    return PolicyRule(verbs=words(verbs), api_groups=words(groups), resources=words(names), resource_names=objects)


@pytest.mark.parametrize(
    ("rule", "wanted", "expected"),
    [
        (resources("get", "core", "pods"), wants("get", "pods"), True),
        (resources("get", "core", "pods"), wants("list", "pods"), False),
        (resources("get", "core", "pods"), wants("get", "pods", group="apps"), False),
        (resources("get", "core", "pods"), wants("get", "pods/log"), False),
        (resources("get", "core", "pods/log"), wants("get", "pods"), False),
        (resources("get", "core", "pods/log"), wants("get", "pods/log"), True),
        (resources("get", "core", "pods/*"), wants("get", "pods/log"), False),
        (resources("*", "*", "*"), wants("impersonate", "users/x", group="any"), True),
        (resources("get", "*", "*/scale"), wants("get", "deployments/scale", group="apps"), True),
        (resources("get", "*", "*/scale"), wants("get", "scale", group="apps"), False),
        (resources("get", "*", "*/scale"), wants("get", "deployments", group="apps"), False),
        (PolicyRule(verbs=("*",), non_resource_urls=("*",)), wants("get", "pods"), False),
    ],
)
def test_a_rule_allows_its_verbs_on_its_resources(rule: PolicyRule, wanted: Attributes, *, expected: bool) -> None:
    assert allows_kind_of(rule, wanted) is expected


def test_paths_are_allowed_whole_or_by_their_beginning() -> None:
    rules = [PolicyRule(verbs=("get",), non_resource_urls=("/metrics", "/api/*"))]
    assert [allows_path(rules, "get", path) for path in ("/metrics", "/metrics/x", "/api/v1", "/api", "/")] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert not allows_path(rules, "post", "/metrics")
    assert allows_path(EVERYTHING, "post", "/anything")
    assert not allows_path([resources("get", "*", "*")], "get", "/metrics")


@pytest.mark.parametrize(
    ("owned", "wanted", "missing"),
    [
        (["get core pods", "list core pods"], "get,list core pods", []),
        (["get core pods"], "get,list core pods", ["list core pods"]),
        (["get core *"], "get core pods/log", []),
        (["get core pods"], "get core *", ["get core *"]),
        (["get core */scale"], "get core x/scale", []),
        (["get core pods only"], "get core pods", ["get core pods"]),
        (["get core pods only"], "get core pods only", []),
        (["get core pods"], "get core pods only", []),
        (["get core pods one", "get core pods two"], "get core pods one,two", []),
        (["get core pods one"], "get core pods one,two", ["get core pods two"]),
        ([], "get core pods", ["get core pods"]),
    ],
)
def test_rules_cover_others_part_by_part(owned: list[str], wanted: str, missing: list[str]) -> None:
    def parsed(text: str) -> PolicyRule:
        verbs, groups, names, *objects = (each.replace(",", " ") for each in text.split())
        return resources(verbs, groups, names, *(objects[0].split() if objects else ()))

    found = missing_rules([parsed(each) for each in owned], [parsed(wanted)], combinations_max=100)
    assert found == [parsed(each) for each in missing]


def test_a_path_is_covered_by_a_wider_pattern() -> None:
    def path(text: str) -> PolicyRule:
        return PolicyRule(verbs=("get",), non_resource_urls=(text,))

    assert not missing_rules([path("/api/*")], [path("/api/*"), path("/api/v1"), path("/api/v1/*")], combinations_max=9)
    assert missing_rules([path("/api/*")], [path("*"), path("/apis")], combinations_max=9) == [path("*"), path("/apis")]
    assert missing_rules([resources("*", "*", "*")], [path("/x")], combinations_max=9)


def test_a_role_with_too_many_combinations_is_refused_before_they_are_made() -> None:
    names = tuple(f"r{n}" for n in range(10_000))
    huge = PolicyRule(verbs=names, api_groups=names, resources=names)
    with pytest.raises(Forbidden, match="more than 1000 combinations"):
        missing_rules([huge], [huge], combinations_max=1000)


_WORDS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(tuple)
_RESOURCES = st.lists(st.sampled_from(["a", "b", "a/s", "*/s", "*"]), min_size=1, max_size=3).map(tuple)
_RULES = st.builds(
    lambda verbs, groups, names, objects: PolicyRule(
        verbs=verbs, api_groups=groups, resources=names, resource_names=objects
    ),
    _WORDS, _WORDS, _RESOURCES, st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
)  # fmt: skip


@given(st.lists(_RULES, max_size=4), st.lists(_RULES, max_size=3))
def test_covered_rules_allow_nothing_that_the_others_do_not(owned: list[PolicyRule], wanted: list[PolicyRule]) -> None:
    """The check of escalation is sound: nothing slips through it."""
    if missing_rules(owned, wanted, combinations_max=10_000):
        return

    def allowed(rules: list[PolicyRule], each: Attributes) -> bool:
        return any(
            allows_kind_of(rule, each) and (not rule.resource_names or each.name in rule.resource_names)
            for rule in rules
        )

    for verb in ("a", "b", "c"):
        for group in ("a", "b", "c"):
            for resource in ("a", "b", "c", "a/s", "b/s", "c/s", "a/t"):
                for name in ("", "x", "y", "z"):
                    each = wants(verb, resource, "", name, group=group)
                    assert allowed(owned, each) or not allowed(wanted, each)


def test_a_rule_is_printed_as_kubernetes_does() -> None:
    rule = resources("get list", "core", "pods", "x")
    assert rule_text(rule) == '{APIGroups:[""], Resources:["pods"], ResourceNames:["x"], Verbs:["get", "list"]}'
