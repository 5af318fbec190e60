"""Views: typed, shared, and frozen at every depth."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from tests.unit.api.manifests import manifest, manifests

from kedge.api.codec import encode_json, encode_object
from kedge.api.kinds import KINDS, Kind
from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.views import (
    FrozenMap,
    NodeAllocationView,
    NodeView,
    PodView,
    View,
    decode_as,
    decode_metadata,
    decode_view,
)
from kedge.api.views.base import json_name
from kedge.errors import BadRequest, Invalid, InvariantBroken

WITH_VIEWS = [kind for kind in KINDS if kind.view is not None]


def view_of(obj: dict[str, Any]) -> Any:
    return decode_view(KINDS.of_api(obj["apiVersion"], obj["kind"]), encode_object(obj))


def walk(value: Any, path: str = "") -> Any:
    yield path, value
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from walk(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from walk(item, f"{path}[{name}]")


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_a_view_is_immutable(obj: dict[str, Any]) -> None:
    kind = KINDS.of_api(obj["apiVersion"], obj["kind"])
    if kind.view is None:
        with pytest.raises(InvariantBroken, match="has no view"):
            decode_view(kind, encode_object(obj))
        return
    for path, value in walk(view_of(obj)):
        if isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                with pytest.raises(AttributeError):
                    setattr(value, name, None)
        elif isinstance(value, dict):
            assert isinstance(value, FrozenMap), path
        else:
            assert isinstance(value, str | int | bool | tuple | datetime | Quantity | None), path
    hash(view_of(obj))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__setitem__("a", "c"), lambda m: m.__delitem__("a"), lambda m: m.clear(), lambda m: m.pop("a"),
        lambda m: m.popitem(), lambda m: m.setdefault("b", "c"), lambda m: m.update(b="c"),
        lambda m: m.__ior__({"b": "c"}),
    ],
)  # fmt: skip
def test_a_frozen_map_rejects_every_change(change: Any) -> None:
    frozen = FrozenMap({"a": "b"})
    with pytest.raises(TypeError, match="write a patch"):
        change(frozen)
    assert frozen == {"a": "b"}


def test_a_frozen_map_copies_pickles_and_hashes_by_content() -> None:
    frozen = FrozenMap({"a": "b", "c": "d"})
    assert hash(frozen) == hash(FrozenMap({"c": "d", "a": "b"}))
    thawed = frozen.copy()
    thawed["x"] = "y"
    assert "x" not in frozen
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) == frozen
    assert type(copy.deepcopy(frozen)) is FrozenMap
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert frozen | {"e": "f"} == {"a": "b", "c": "d", "e": "f"}


def test_a_pod_is_decoded_with_its_types() -> None:
    pod = cast(PodView, view_of(manifest("Pod")))
    assert (pod.name, pod.namespace, pod.uid, pod.terminating, pod.finished) == ("web-0", "team-a", "", False, False)
    container = pod.spec.containers[0]
    assert container.resources.requests["cpu"] == parse_quantity("100m")
    assert container.resources.limits["cpu"] == parse_quantity("1")
    assert container.ports[0].host_port == 18080
    assert container.readiness_probe is not None
    assert container.readiness_probe.http_get is not None
    assert container.readiness_probe.http_get.port == "http"
    assert pod.spec.tolerations[1].toleration_seconds == 30
    assert pod.status.pod_ip == "10.0.0.9"
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.pod_anti_affinity is not None


def test_a_ledger_is_decoded_by_pod_uid() -> None:
    allocation = cast(NodeAllocationView, view_of(manifest("NodeAllocation")))
    (entry,) = allocation.status.entries.values()
    assert (entry.state, entry.zone, entry.ports[0].host_ip) == ("Bound", "a", "0.0.0.0")
    assert allocation.spec.node_uid == "n"


def test_pods_of_one_size_share_one_map() -> None:
    one, other = view_of(manifest("Pod")), view_of(manifest("Pod"))
    assert one.spec.containers[0].resources.requests is other.spec.containers[0].resources.requests


def test_replicas_share_their_labels_but_long_values_are_not_shared() -> None:
    def labels(value: str) -> Any:
        return decode_as(PodView, encode_json({"metadata": {"labels": {"app": value}, "annotations": {"a": value}}}))

    assert labels("web").labels is labels("web").labels
    assert labels("web").metadata.annotations is not labels("web").metadata.annotations
    assert labels("x" * 200).labels is not labels("x" * 200).labels
    assert labels("x" * 200).labels == {"app": "x" * 200}


def test_a_minimal_object_has_the_defaults_of_kubernetes() -> None:
    pod = decode_as(PodView, b'{"metadata":{"name":"a"}}')
    assert pod.spec.restart_policy == "Always"
    assert pod.spec.scheduler_name == "default-scheduler"
    assert pod.spec.termination_grace_period_seconds == 30
    assert pod.labels == {}


def test_null_means_unset_at_every_path() -> None:
    body = {
        "metadata": {"name": "a", "labels": None, "creationTimestamp": None, "finalizers": None},
        "spec": {"containers": [{"name": "c", "resources": None, "ports": None}], "nodeName": None},
        "status": None,
    }
    pod = decode_as(PodView, encode_json(body))
    assert pod == decode_as(PodView, b'{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}')


def test_times_are_moments_in_utc() -> None:
    node = decode_as(NodeView, b'{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T02:00:00+02:00"}}')
    assert node.metadata.deletion_timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert node.terminating


def test_metadata_alone_can_be_decoded_for_any_kind() -> None:
    metadata = decode_metadata(encode_object(manifest("ConfigMap")))
    assert (metadata.name, metadata.namespace) == ("settings", "team-a")


def test_invalid_bytes_are_rejected_with_every_field() -> None:
    with pytest.raises(Invalid) as caught:
        decode_as(PodView, b'{"metadata":{"name":3},"spec":{"containers":[{"ports":7}],"priority":"high"}}')
    assert [error.path for error in caught.value.errors] == [
        "metadata.name",
        "spec.containers[0].ports",
        "spec.priority",
    ]
    with pytest.raises(BadRequest):
        decode_as(PodView, b"[]")


@pytest.mark.parametrize("kind", WITH_VIEWS, ids=lambda kind: kind.kind)
def test_every_view_decodes_an_empty_object(kind: Kind) -> None:
    assert isinstance(decode_view(kind, b"{}"), View)


@pytest.mark.parametrize(
    ("attribute", "name"),
    [("node_name", "nodeName"), ("pod_ip", "podIP"), ("pod_ips", "podIPs"), ("node_uid", "nodeUID"), ("uid", "uid"),
     ("boot_id", "bootID"), ("pod_cidrs", "podCIDRs"), ("http_get", "httpGet"), ("system_uuid", "systemUUID")],
)  # fmt: skip
def test_attributes_have_kubernetes_names_in_json(attribute: str, name: str) -> None:
    assert json_name(attribute) == name
