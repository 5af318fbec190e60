"""Selectors, compared with a naive implementation of their rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.codec import encode_json
from kedge.api.kinds import KINDS
from kedge.api.selectors import (
    EVERYTHING,
    NOTHING,
    FieldSelector,
    LabelSelector,
    Requirement,
    label_selector,
    labels_selector,
    node_selector,
    parse_field_selector,
    parse_int64,
    parse_label_selector,
    read_fields,
)
from kedge.api.views import LabelSelectorSpec, NodeSelectorSpec
from kedge.api.views.schema import dec_hook
from kedge.caches import cache_states
from kedge.errors import BadRequest

keys = st.sampled_from(["app", "tier", "example.com/x", "a.b_c-d", "Z"])
label_values = st.sampled_from(["", "web", "a-b", "1", "10", "x.y_z"])
labels = st.dictionaries(keys, label_values, max_size=4)
value_sets = st.frozensets(label_values, min_size=1, max_size=3)
requirements = st.one_of(
    st.builds(Requirement, keys, st.sampled_from(["In", "NotIn"]), value_sets),
    st.builds(Requirement, keys, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Requirement, keys, st.sampled_from(["Gt", "Lt"]), st.integers(0, 20).map(lambda n: frozenset([str(n)]))),
)


def naive(requirement: Requirement, found: Mapping[str, str]) -> bool:
    """The rules of the Kubernetes documentation."""
    key, values = requirement.key, set(requirement.values)
    if requirement.operator == "In":
        return key in found and found[key] in values
    if requirement.operator == "NotIn":
        return not (key in found and found[key] in values)
    if requirement.operator == "Exists":
        return key in found
    if requirement.operator == "DoesNotExist":
        return key not in found
    if key not in found or not found[key].isdigit():
        return False
    (bound,) = values
    return int(found[key]) > int(bound) if requirement.operator == "Gt" else int(found[key]) < int(bound)


def selector_spec(value: Any) -> LabelSelectorSpec:
    return msgspec.convert(value, LabelSelectorSpec, dec_hook=dec_hook)


# -- labels ----------------------------------------------------------------------------------------


@given(st.lists(requirements, max_size=4), labels)
def test_a_selector_matches_exactly_if_every_requirement_does(wanted: list[Requirement], found: dict[str, str]) -> None:
    assert LabelSelector(tuple(wanted)).matches(found) == all(naive(each, found) for each in wanted)


def test_values_to_avoid_are_written_as_a_set() -> None:
    """kubectl reads the selector of a scale, and knows no other form."""
    spec = selector_spec({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["old"]}]})
    assert str(label_selector(spec)) == "tier notin (old)"


@given(st.lists(requirements, max_size=4))
def test_a_selector_reads_back_as_it_is_written(wanted: list[Requirement]) -> None:
    selector = LabelSelector(tuple(sorted(wanted, key=lambda each: each.key)))
    assert parse_label_selector(str(selector)) == selector


@given(st.lists(requirements.filter(lambda r: r.operator not in ("Gt", "Lt")), max_size=4), labels)
def test_the_object_form_is_equivalent_to_the_text(wanted: list[Requirement], found: dict[str, str]) -> None:
    expressions = [{"key": r.key, "operator": r.operator, "values": sorted(r.values)} for r in wanted]
    compiled = label_selector(selector_spec({"matchExpressions": expressions}))
    text = parse_label_selector(",".join(map(str, wanted)))
    assert compiled.matches(found) == text.matches(found)


@pytest.mark.parametrize(
    ("text", "matching", "failing"),
    [
        ("app=web", {"app": "web"}, {"app": "db"}),
        ("app==web", {"app": "web"}, {}),
        ("app != web", {}, {"app": "web"}),
        ("app in (web, db)", {"app": "db"}, {"app": "x"}),
        ("app notin (web,db)", {"tier": "1"}, {"app": "db"}),
        ("app", {"app": ""}, {}),
        ("!app", {}, {"app": ""}),
        ("! app", {}, {"app": ""}),
        ("app=", {"app": ""}, {"app": "x"}),
        ("app in (,web)", {"app": ""}, {"app": "x"}),
        ("cores>4", {"cores": "5"}, {"cores": "4"}),
        ("cores<4", {"cores": "3"}, {"cores": "x"}),
        ("in in (in)", {"in": "in"}, {"in": "notin"}),
        ("example.com/app=web,!old", {"example.com/app": "web"}, {"example.com/app": "web", "old": ""}),
    ],
)
def test_label_selectors_are_parsed_as_by_kubectl(text: str, matching: Any, failing: Any) -> None:
    selector = parse_label_selector(text)
    assert selector.matches(matching)
    assert not selector.matches(failing)


@pytest.mark.parametrize(
    "text",
    ["=web", ",", "app,", "app=web,,tier", "app in", "app in web", "app in ()", "app in (web", "app web", "app=a=b",
     "!", "!!app", "app>x", "app>", "-app", "app=-x", "a/b/c", "app in (a b)", "app)", "app=" + "x" * 64, "app & b"],
)  # fmt: skip
def test_a_malformed_label_selector_is_rejected(text: str) -> None:
    with pytest.raises(BadRequest, match="unable to parse label selector"):
        parse_label_selector(text)


@given(st.text(st.sampled_from("ab=!<>(), in/-."), max_size=12))
def test_no_text_raises_another_error(text: str) -> None:
    try:
        selector = parse_label_selector(text)
    except BadRequest:
        return
    assert parse_label_selector(str(selector)) == selector


def test_an_absent_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert label_selector(None) is NOTHING
    assert not NOTHING.matches({"a": "b"})
    assert not NOTHING.empty
    assert label_selector(LabelSelectorSpec()).matches({})
    assert label_selector(LabelSelectorSpec()).empty
    assert parse_label_selector("  ") is EVERYTHING
    assert EVERYTHING.matches({"a": "b"})


def test_a_plain_map_selects_objects_with_all_its_labels() -> None:
    selector = labels_selector({"app": "web", "tier": "1"})
    assert selector.matches({"app": "web", "tier": "1", "x": "y"})
    assert not selector.matches({"app": "web"})


# -- nodes -----------------------------------------------------------------------------------------


def nodes(*terms: Any) -> Any:
    return node_selector(msgspec.convert({"nodeSelectorTerms": list(terms)}, NodeSelectorSpec, dec_hook=dec_hook))


def term(key: str, operator: str, *values: str) -> Any:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_terms_are_alternatives_and_an_empty_one_matches_no_node() -> None:
    assert nodes(term("zone", "In", "a"), term("zone", "In", "b")).matches("n", {"zone": "b"})
    assert not nodes({}).matches("n", {"zone": "b"})
    assert not nodes().matches("n", {})


@pytest.mark.parametrize(
    ("operator", "bound", "value", "expected"),
    [("Gt", "4", "5", True), ("Gt", "4", "4", False), ("Lt", "4", "-5", True), ("Gt", "4", "five", False),
     ("Lt", "4", "99999999999999999999", False), ("Gt", "x", "5", False), ("Gt", "4", "", False),
     ("Gt", "00000000000000000000000004", "5", True), ("Lt", "4", "-000000000000000000000000005", True),
     ("Gt", "1_0", "50", False), ("Gt", "99999999999999999999", "5", False), ("Lt", "4.0", "1", False)],
)  # fmt: skip
def test_gt_and_lt_compare_whole_numbers(operator: str, bound: str, value: str, expected: bool) -> None:
    assert nodes(term("cores", operator, bound)).matches("n", {"cores": value}) is expected
    assert not nodes(term("cores", operator, bound)).matches("n", {})


def test_a_term_can_name_the_node() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert nodes(by_name).matches("n1", {})
    assert not nodes(by_name).matches("n2", {})
    both = {**by_name, **term("zone", "Exists")}
    assert nodes(both).matches("n1", {"zone": ""})
    assert not nodes(both).matches("n1", {})


@given(st.integers(-(2**70), 2**70))
def test_only_numbers_of_64_bits_count(number: int) -> None:
    assert parse_int64(str(number)) == (number if -(2**63) <= number < 2**63 else None)


# -- fields ----------------------------------------------------------------------------------------

POD = KINDS.resolve("po")
OBJECT: Any = {
    "metadata": {"name": "web-0", "namespace": "team-a"},
    "spec": {"nodeName": "n1", "containers": [{"x": 1e300}]},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("metadata.name=web-0", True),
        ("metadata.name==web-0", True),
        ("metadata.name!=web-0", False),
        ("spec.nodeName=n1,status.phase!=Failed", True),
        ("spec.nodeName=n1,status.phase=Failed", False),
        ("spec.nodeName=", False),
        ("status.podIP=", True),
        ("spec.hostNetwork=false", True),
        ("status.nominatedNodeName!=n2", True),
    ],
)
def test_field_selectors_match_by_the_value_or_its_absence(text: str, expected: bool) -> None:
    assert parse_field_selector(POD, text).matches(encode_json(OBJECT)) is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spec.dnsPolicy=x", '"spec.dnsPolicy" is not a known field selector of pods'),
        ("metadata.labels.app=x", "not a known field selector"),
        ("metadata.name", "can't understand"),
        ("=x", "can't understand"),
        ("metadata.name=a=b", "write '='"),
        ("metadata.name=a\\x", "not an escape"),
        ("metadata.name=a\\", "in the middle of an escape"),
    ],
)
def test_a_malformed_field_selector_is_rejected(text: str, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_field_selector(POD, text)
    assert why in caught.value.message


@given(
    st.lists(
        st.tuples(st.sampled_from(["metadata.name", "spec.nodeName"]), st.booleans(), st.text(max_size=6)), max_size=3
    )
)
def test_a_field_selector_reads_back_as_it_is_written(terms: list[tuple[str, bool, str]]) -> None:
    selector = FieldSelector(tuple(terms))
    assert parse_field_selector(POD, str(selector)) == selector


def test_fields_that_kubernetes_computes_are_found_where_they_are_stored() -> None:
    job = parse_field_selector(KINDS.resolve("jobs"), "status.successful=2")
    assert job.matches(b'{"status":{"succeeded":2}}')
    assert parse_field_selector(KINDS.resolve("jobs"), "status.successful=0").matches(b"{}")
    event = parse_field_selector(KINDS.resolve("ev"), "source=kubelet,involvedObject.name=web-0")
    assert event.matches(b'{"source":{"component":"kubelet"},"involvedObject":{"name":"web-0"}}')
    node = parse_field_selector(KINDS.resolve("no"), "spec.unschedulable=false")
    assert node.matches(b'{"spec":{}}')
    assert not node.matches(b'{"spec":{"unschedulable":true}}')


def test_watches_by_the_same_field_share_one_decoding_of_an_object() -> None:
    """Every agent watches the pods of its own node, so each change of a pod is evaluated once for each agent."""
    value = encode_json({"metadata": {"name": "one-decoding"}, "spec": {"nodeName": "n7"}})
    selectors = [parse_field_selector(KINDS.of_key_kind("Pod"), f"spec.nodeName=n{n}") for n in range(20)]
    before = cache_states()["api.selectors._read_fields"].misses
    assert [n for n, each in enumerate(selectors) if each.matches(value)] == [7]
    assert cache_states()["api.selectors._read_fields"].misses == before + 1


def test_a_field_selector_has_the_name_that_it_requires() -> None:
    selector = parse_field_selector(POD, "metadata.name=web-0,status.phase!=Failed")
    assert selector.exact("metadata.name") == "web-0"
    assert selector.exact("status.phase") is None
    assert not selector.empty


def test_malformed_objects_do_not_match() -> None:
    selector = parse_field_selector(POD, "spec.nodeName=n1")
    assert not selector.matches(b'{"spec":[1]}')
    assert not selector.matches(b'{"spec":null}')
    assert not selector.matches(b'{"spec":{"nodeName":1e400}}')


def test_the_older_name_of_the_node_selects_pods_too() -> None:
    pod = encode_json({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}})
    assert parse_field_selector(POD, "spec.host=n1").matches(pod)
    assert not parse_field_selector(POD, "spec.host=n1,spec.nodeName!=n1").matches(pod)
    assert not parse_field_selector(POD, "spec.host=n2").matches(pod)


def test_the_caches_of_field_selectors_have_a_bound_in_entries() -> None:
    pod = encode_json({"metadata": {"name": "a"}})
    for number in range(300):
        read_fields((f"metadata.field{number}",), pod)
    for name in ("_read_fields", "_field_reader"):
        assert cache_states()[f"api.selectors.{name}"].entries == 128


def test_a_large_object_is_not_kept_by_the_cache_of_its_fields() -> None:
    value = encode_json({"metadata": {"name": "large"}, "data": {"filler": "x" * 20_000}})
    before = cache_states()["api.selectors._read_fields"]
    assert read_fields(("metadata.name",), value) == {"metadata.name": "large"}
    assert cache_states()["api.selectors._read_fields"] == before
