"""Changes of inputs: their forms, and their effect on the objects of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.errors import BadRequest, NotFound
from kedge.keys import Key
from kedge.observe.readers.what_if import (
    FORMS,
    AmountChange,
    HeldObjects,
    LabelSet,
    NodeChange,
    PodRemoved,
    PolicyVersionUsed,
    QuotaChange,
    TaintRemoved,
    Uncordoned,
    apply_changes,
    parse_change,
)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("quota/risk.zone-c.cpu=+2", QuotaChange("risk", "zone-c", "cpu", AmountChange("2", 1))),
        ("quota/risk.zone-c.nvidia.com/gpu=3", QuotaChange("risk", "zone-c", "nvidia.com/gpu", AmountChange("3", 0))),
        ("node/n=cpu:8,zone:z", NodeChange("n", {"cpu": AmountChange("8", 0)}, zone="z")),
        ("node/n=+cpu:500m", NodeChange("n", {"cpu": AmountChange("500m", 1)})),
        ("node/n=like:m", NodeChange("n", {}, like="m")),
        ("taint/n/example.com/dedicated=-", TaintRemoved("n", "example.com/dedicated")),
        ("label/n/disk=ssd", LabelSet("n", "disk", "ssd")),
        ("cordon/n=-", Uncordoned("n")),
        ("pod/other/web-0=-", PodRemoved("other/web-0")),
        ("policy/p=v3", PolicyVersionUsed("p", "v3")),
    ],
)
def test_each_form_is_read(text: str, change: object) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    "text",
    ["", "quota/risk=2", "quota/risk.zone-c.cpu", "taint/n=-", "cordon/n=x", "node/n=8", "disk/n=1", "quota/a.b.c="],
)
def test_any_other_text_is_refused_with_every_form(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_change(text)
    assert FORMS in str(caught.value)


def test_an_amount_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="is no amount"):
        parse_change("quota/risk.zone-c.cpu=+many")


def made(kind: str, name: str, namespace: str = "", **parts: Any) -> Object:
    found = KINDS.of_key_kind(kind)
    body = {
        "apiVersion": found.api_version,
        "kind": found.kind,
        "metadata": {"name": name, "uid": f"uid-{name}"},
        **parts,
    }
    return Object(found, Key(kind, namespace, name), msgspec.json.encode(body), revision=3, created=1)


def held(*objects: Object) -> HeldObjects:
    found: HeldObjects = {}
    for each in objects:
        found.setdefault(each.key.kind, {})[each.key] = each
    return found


def changed(text: str, *objects: Object, versions: Mapping[Key, list[Object]] | None = None) -> HeldObjects:
    known = versions or {}
    return apply_changes([parse_change(text)], held(*objects), "risk", lambda key: known.get(key, []))


NODE = made(
    "Node", "n", spec={"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b"}]},
    status={"allocatable": {"cpu": "4", "memory": "8Gi"}},
)  # fmt: skip
NODE_KEY = Key("Node", "", "n")


@pytest.mark.parametrize(("amount", "left"), [("+2", "6"), ("-1500m", "2500m"), ("-9", "0"), ("7", "7")])
def test_a_quota_is_raised_lowered_or_set(amount: str, left: str) -> None:
    quota = made("ZoneQuota.kedge.dev", "risk", "risk", spec={"zones": {"zone-c": {"hard": {"cpu": "4"}}}})
    found = changed(f"quota/risk.zone-c.cpu={amount}", quota)["ZoneQuota.kedge.dev"][quota.key]
    assert found.edit()["spec"]["zones"]["zone-c"]["hard"] == {"cpu": left}
    assert quota.edit()["spec"]["zones"]["zone-c"]["hard"] == {"cpu": "4"}, "the record stays as it is"


def test_a_node_is_changed_in_one_place_and_an_added_one_is_new() -> None:
    assert [each["key"] for each in changed("taint/n/a=-", NODE)["Node"][NODE_KEY].edit()["spec"]["taints"]] == ["b"]
    assert "unschedulable" not in changed("cordon/n=-", NODE)["Node"][NODE_KEY].edit()["spec"]
    assert changed("label/n/disk=ssd", NODE)["Node"][NODE_KEY].metadata.labels == {"disk": "ssd"}
    assert changed("node/n=+cpu:2", NODE)["Node"][NODE_KEY].edit()["status"]["allocatable"]["cpu"] == "6"
    added = changed("node/m=cpu:8,zone:z", NODE)["Node"][Key("Node", "", "m")]
    assert added.edit()["status"]["allocatable"] == {"pods": "110", "cpu": "8"}
    assert added.metadata.labels["topology.kubernetes.io/zone"] == "z"
    twin = changed("node/m=like:n", NODE)["Node"][Key("Node", "", "m")]
    assert twin.edit()["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi"}
    assert twin.uid != NODE.uid


def test_a_pod_that_is_removed_leaves_its_node_s_ledger() -> None:
    pod = made("Pod", "web", "risk", spec={"nodeName": "n"})
    ledger = made("NodeAllocation.kedge.dev", "n", status={"entries": {"uid-web": {}, "uid-other": {}}})
    found = changed("pod/web=-", pod, ledger)
    assert found["Pod"] == {}
    assert list(found["NodeAllocation.kedge.dev"][ledger.key].edit()["status"]["entries"]) == ["uid-other"]


def test_a_policy_version_comes_from_the_history() -> None:
    now, old = (
        made("SchedulingPolicy.kedge.dev", "p", spec={"version": each, "rank": n}) for n, each in enumerate("ab")
    )
    found = changed("policy/p=b", now, versions={now.key: [now, old]})["SchedulingPolicy.kedge.dev"][now.key]
    assert found.edit()["spec"] == {"version": "b", "rank": 1}
    with pytest.raises(NotFound, match="have no version c of SchedulingPolicy p"):
        changed("policy/p=c", now, versions={now.key: [now]})


@pytest.mark.parametrize("text", ["quota/none.zone-c.cpu=1", "taint/none/a=-", "pod/none=-", "node/m=like:none"])
def test_a_change_of_an_object_that_there_was_not_names_those_that_there_were(text: str) -> None:
    with pytest.raises(NotFound, match=r"the decision had no .* none: it had"):
        changed(text, NODE)
