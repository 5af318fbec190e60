"""Strategic merge patch: lists by key, scalars as sets, every directive, and bad patches that name their field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.strategic_merge import STRATEGIC_MERGE_REPEATS_MAX, FieldPlace, apply_strategic_merge
from kedge.api.types import type_table
from kedge.errors import Invalid

TABLE = type_table()


def merge(target: dict[str, Any], patch: Any, api_version: str = "v1", kind: str = "Pod") -> dict[str, Any]:
    facts = TABLE.of_kind(api_version, kind)
    assert facts is not None
    return apply_strategic_merge(target, patch, facts, TABLE)


def containers(*items: Any, **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(items), **more}}


A, B, C = ({"name": name, "image": f"{name}:1"} for name in "abc")


def test_items_merge_by_their_key_and_keep_what_the_patch_does_not_name() -> None:
    merged = merge(containers(A, B), containers({"name": "b", "image": "b:2", "tty": True}))
    assert merged == containers(A, {"name": "b", "image": "b:2", "tty": True})


def test_a_new_item_stands_before_the_items_of_the_target_as_in_kubernetes() -> None:
    assert merge(containers(A, B), containers(C)) == containers(C, A, B)


def test_an_item_with_patch_delete_removes_its_match_only() -> None:
    assert merge(containers(A, B), containers({"name": "a", "$patch": "delete"})) == containers(B)


def test_an_item_with_patch_delete_that_matches_nothing_changes_nothing() -> None:
    assert merge(containers(A), containers({"name": "z", "$patch": "delete"})) == containers(A)


def test_an_item_with_patch_replace_replaces_the_whole_list() -> None:
    assert merge(containers(A, B), containers(C, {"$patch": "replace"})) == containers(C)


def test_a_map_with_patch_replace_replaces_the_map() -> None:
    merged = merge({"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"b": "2", "$patch": "replace"}}})
    assert merged == {"metadata": {"labels": {"b": "2"}}}


def test_a_map_with_patch_delete_becomes_empty() -> None:
    assert merge({"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"$patch": "delete"}}}) == {
        "metadata": {"labels": {}}
    }


def test_null_removes_a_field_and_is_never_stored() -> None:
    assert merge({"spec": {"nodeName": "n1", "hostname": "h"}}, {"spec": {"nodeName": None, "priority": None}}) == {
        "spec": {"hostname": "h"}
    }
    assert merge({}, {"spec": {"securityContext": {"runAsUser": None, "fsGroup": 1}}}) == {
        "spec": {"securityContext": {"fsGroup": 1}}
    }


def test_lists_without_a_strategy_are_replaced() -> None:
    target = containers({"name": "a", "command": ["x", "y"]})
    assert merge(target, containers({"name": "a", "command": ["z"]})) == containers({"name": "a", "command": ["z"]})


def test_scalars_merge_as_a_set() -> None:
    merged = merge({"metadata": {"finalizers": ["x/a", "x/b"]}}, {"metadata": {"finalizers": ["x/c", "x/a"]}})
    assert sorted(merged["metadata"]["finalizers"]) == ["x/a", "x/b", "x/c"]


def test_scalars_are_deleted_from_a_merged_list() -> None:
    merged = merge(
        {"metadata": {"finalizers": ["x/a", "x/b"]}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}}
    )
    assert merged == {"metadata": {"finalizers": ["x/b"]}}


def test_element_order_sorts_the_items_that_it_names() -> None:
    patch = {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [C]}}
    assert merge(containers(A), patch) == containers(C, A)


def test_element_order_keeps_items_of_the_server_where_they_stood() -> None:
    patch = {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}]}}
    assert merge(containers(A, B, C), patch) == containers(A, C, B)


def test_element_order_with_a_deletion_as_kubectl_apply_sends_it() -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "b"}],
            "containers": [{"name": "b", "image": "b:2"}, {"name": "a", "$patch": "delete"}],
        }
    }
    assert merge(containers(A, B), patch) == containers({"name": "b", "image": "b:2"})


def test_element_order_sorts_scalars_too() -> None:
    patch = {"metadata": {"$setElementOrder/finalizers": ["x/b", "x/a"], "finalizers": ["x/b"]}}
    assert merge({"metadata": {"finalizers": ["x/a"]}}, patch) == {"metadata": {"finalizers": ["x/b", "x/a"]}}


def test_retain_keys_drops_the_other_fields() -> None:
    target = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert merge(target, patch, "apps/v1", "Deployment") == {"spec": {"strategy": {"type": "Recreate"}}}


def test_a_service_port_is_matched_by_port_alone() -> None:
    target = {"spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "web"}]}}
    patch = {"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}
    assert merge(target, patch, "v1", "Service") == {
        "spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "web", "targetPort": 8080}]}
    }


def test_a_selector_of_a_budget_is_replaced_whole() -> None:
    target = {"spec": {"selector": {"matchLabels": {"a": "1"}}}}
    patch = {"spec": {"selector": {"matchLabels": {"b": "2"}}}}
    assert merge(target, patch, "policy/v1", "PodDisruptionBudget") == patch


def test_directives_in_a_part_that_is_new_leave_nothing_behind() -> None:
    patch = containers({"name": "a", "$setElementOrder/ports": [], "ports": [{"containerPort": 1, "$patch": "delete"}]})
    assert merge({}, patch) == containers({"name": "a", "ports": []})


def test_fields_that_no_table_knows_merge_like_maps_and_replace_like_lists() -> None:
    assert merge({"x": {"a": 1, "l": [1]}}, {"x": {"b": 2, "l": [2]}}) == {"x": {"a": 1, "b": 2, "l": [2]}}


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ([], "object"),
        (containers({"image": "x"}), "spec.containers[0]"),
        (containers({"name": {"no": "map"}}), "spec.containers[0].name"),
        (containers("a"), "spec.containers[0]"),
        (containers({"name": "a", "$patch": "explode"}), "spec.containers[0]"),
        ({"spec": {"$patch": "explode"}}, "spec"),
        ({"spec": {"$retainKeys": "containers"}}, "spec"),
        ({"spec": {"$retainKeys": ["a"], "containers": [A]}}, "spec.containers"),
        ({"spec": {"$setElementOrder/containers": {"a": 1}}}, "spec.containers"),
        ({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [A]}}, "spec.containers"),
        (
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [A, B]}},
            "spec.containers",
        ),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}, "metadata.finalizers"),
        ({"metadata": {"finalizers": [{"a": 1}]}}, "metadata.finalizers"),
    ],
)
def test_a_bad_patch_names_the_field(patch: Any, field: str) -> None:
    target = {"metadata": {"finalizers": ["x/a"]}, **containers(A, B)}
    before = copy.deepcopy(target)
    with pytest.raises(Invalid, match="the patch cannot be applied") as raised:
        merge(target, patch)
    assert field in str(raised.value)
    assert target == before


def test_a_patch_that_nests_too_deep_is_refused() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"a": deep}
    with pytest.raises(Invalid, match="nested more than 100 deep"):
        merge(containers(A), {"metadata": {"annotations": deep}})


def test_items_of_one_key_merge_one_after_the_other_up_to_a_bound() -> None:
    """A service that listens on a port with TCP and UDP lists the port twice."""
    change = [{"name": "a", "image": "a:2"}, {"name": "a", "tty": True}]
    assert merge(containers(A), containers(*change)) == containers({"name": "a", "image": "a:2", "tty": True})
    large = {"name": "a", "env": [{"name": f"e{n}"} for n in range(STRATEGIC_MERGE_REPEATS_MAX // 100)]}
    repeated = [{"name": "a", "env": [{"name": "e0", "value": "1"}]}] * 100
    with pytest.raises(Invalid, match=r"spec.containers\[\d+\]: the patch lists items of one key too often"):
        merge(containers(large), containers(*repeated))


names = st.sampled_from("abcdef")
items = st.fixed_dictionaries({"name": names}, optional={"image": st.sampled_from(["1", "2"]), "tty": st.booleans()})
lists = st.lists(items, unique_by=lambda item: item["name"], max_size=5)


@given(lists, lists, st.sets(names, max_size=2))
def test_every_merged_list_equals_that_of_a_plain_loop(
    target: list[dict[str, Any]], change: list[dict[str, Any]], deleted: set[str]
) -> None:
    """The order aside, which the next test holds: each item is the target's, overlaid with the change's."""
    change = [item for item in change if item["name"] not in deleted]
    patch = [*change, *({"name": name, "$patch": "delete"} for name in sorted(deleted))]
    merged = merge(containers(*target), containers(*patch))["spec"]["containers"]
    expected = {item["name"]: dict(item) for item in target if item["name"] not in deleted}
    for item in change:
        expected.setdefault(item["name"], {}).update(item)
    assert {item["name"]: item for item in merged} == expected
    assert len(merged) == len(expected)


@given(lists, lists, st.randoms(use_true_random=False))
def test_the_order_that_a_patch_names_is_the_order_it_gets(
    target: list[dict[str, Any]], change: list[dict[str, Any]], random: Any
) -> None:
    known = [item["name"] for item in target]
    order = [*{*(item["name"] for item in change), *known[::2]}]
    random.shuffle(order)
    change = sorted(change, key=lambda item: order.index(item["name"]))
    patch = {"spec": {"$setElementOrder/containers": [{"name": name} for name in order], "containers": change}}
    merged = [item["name"] for item in merge(containers(*target), patch)["spec"]["containers"]]
    assert [name for name in merged if name in order] == order
    others = [name for name in known if name not in order]
    assert [name for name in merged if name not in order] == others
    assert sorted(merged) == sorted({*order, *known})


@given(lists, lists)
def test_a_patch_applied_twice_is_applied_once(target: list[dict[str, Any]], change: list[dict[str, Any]]) -> None:
    patch = containers(*change)
    before = copy.deepcopy((target, patch))
    once = merge(containers(*target), patch)
    assert merge(once, patch) == once
    assert (target, patch) == before


def test_the_path_of_a_field_is_written_out_only_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[FieldPlace] = []
    text = FieldPlace.text

    def counted(place: FieldPlace) -> str:
        written.append(place)
        return text(place)

    monkeypatch.setattr(FieldPlace, "text", counted)
    name = "long" * 1_000
    fields = {f"f{n}": {"a": 1} for n in range(500)}
    assert merge({"x": {name: fields}}, {"x": {name: fields}}) == {"x": {name: fields}}
    assert not written
    with pytest.raises(Invalid, match=rf"x\.{name}\.f0: \$patch is replace or delete"):
        merge({"x": {name: fields}}, {"x": {name: {"f0": {"$patch": 3}}}})
    assert len(written) == 1
