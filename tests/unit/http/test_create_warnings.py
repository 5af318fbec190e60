"""Warnings on a create: images are labels, a container needs a command, and parts of Services are not served."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.api.kinds import KINDS
from kedge.server.http.create_warnings import NOTE, create_warnings, has_warnings, pod_warnings

RUNS = {"name": "main", "command": ["true"]}


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"containers": [RUNS]}},
        {"spec": {"template": {"spec": {"containers": [RUNS]}}}},
        {"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [RUNS]}}}}}},
    ],
)
def test_a_pod_and_every_template_of_one_has_the_note(body: dict[str, Any]) -> None:
    assert pod_warnings(body) == (NOTE,)


def test_a_container_without_a_command_is_named() -> None:
    body = {"spec": {"containers": [RUNS, {"name": "web", "image": "nginx"}]}}
    assert [text.partition(":")[0] for text in pod_warnings(body)[1:]] == [
        "container web has no command and will wait",
    ]


def test_a_host_port_is_not_forwarded() -> None:
    body = {
        "spec": {"containers": [{**RUNS, "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}]}
    }
    (warning,) = pod_warnings(body)[1:]
    assert "hostPort 8080 is reserved, and nothing is forwarded to it" in warning


def test_volumes_in_memory_and_sizes_that_nothing_enforces_are_named() -> None:
    volumes = [
        {"name": "plain", "emptyDir": {}},
        {"name": "small", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "other", "configMap": {"name": "x"}},
        5,
    ]
    assert pod_warnings({"spec": {"containers": [RUNS], "volumes": volumes}})[1:] == (
        "volume small: sizeLimit of a folder on disk is not enforced: use medium Memory",
        "volume fast: medium Memory is a folder on disk on nodes without VolumeMounts",
    )


@pytest.mark.parametrize(
    "body", [{}, {"spec": None}, {"spec": {"template": 5}}, {"spec": {"replicas": 1}}, {"data": {}}]
)
def test_other_objects_have_none(body: dict[str, Any]) -> None:
    assert pod_warnings(body) == ()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ports": [{"port": 80}]}, []),
        ({"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}]}, []),
        ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}, ["spec.type NodePort", "nodePort 30080"]),
        ({"type": "LoadBalancer"}, ["spec.type LoadBalancer"]),
        ({"type": "ExternalName"}, ["spec.type ExternalName"]),
        ({"clusterIP": "None"}, ["spec.clusterIP None"]),
        ({"ports": [{"port": 53, "protocol": "UDP"}, 7]}, ["protocol UDP"]),
        (5, []),
    ],
)
def test_the_parts_of_a_service_that_no_node_serves_are_named(spec: Any, expected: list[str]) -> None:
    found = create_warnings(KINDS.of_key_kind("Service"), {"spec": spec})
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert part in text


def test_kinds_that_change_nothing_are_named() -> None:
    for kind in KINDS:
        found = create_warnings(kind, {"spec": {}})
        assert bool(found) == (kind.group in ("apiextensions.k8s.io", "admissionregistration.k8s.io")), kind.kind
        assert not found or has_warnings(kind)
