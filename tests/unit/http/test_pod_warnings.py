"""Warnings on the create of a pod or a template: images are labels, and a container needs a command."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.server.http.pod_warnings import NOTE, pod_warnings

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
