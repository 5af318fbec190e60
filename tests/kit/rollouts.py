"""Rollouts and policies, as JSON."""

from __future__ import annotations

from typing import Any

from kedge.api.kinds import KINDS
from kedge.keys import Key

ROLLOUT = KINDS.of_key_kind("Rollout.kedge.dev")

POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")

NEXT = Key(ROLLOUT.key_kind, "default", "next")

SPREAD = Key(POLICY.key_kind, "", "spread")


def template(image: str = "web:2") -> dict[str, Any]:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}


def rollout(*stages: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kedge.dev/v1",
        "kind": "Rollout",
        "metadata": {"name": "next", "namespace": "default"},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "template": template(),
            "stages": list(stages),
            **spec,
        },
    }


def policy() -> dict[str, Any]:
    return {
        "apiVersion": "kedge.dev/v1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "spread"},
        "spec": {"version": "v4", "maxZoneSkew": 2},
    }
