"""Deployments and Jobs, as JSON."""

from __future__ import annotations

from typing import Any

from tests.objects import deployment

from kedge.api.kinds import KINDS
from kedge.keys import Key

WEB = Key("Deployment.apps", "default", "web")

JOB = KINDS.of_key_kind("Job.batch")


def web(replicas: int, *, surge: int, unavailable: int) -> dict[str, Any]:
    body = deployment("web", replicas=replicas)
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    body["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return body


def image(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": name, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


BATCH = Key("Job.batch", "default", "batch")


def batch(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "batch:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": "batch", "namespace": "default"}, "spec": {**spec, "template": template}}
