"""Admission policies of tests: one adds a label, one refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kedge.server.service import AdmissionRequest, FunctionPolicy


def add_label(name: str, label: str, value: str, revision: int = 0) -> FunctionPolicy:
    def mutate(request: AdmissionRequest, _inputs: Any) -> Sequence[dict[str, Any]]:
        labels = request.object["metadata"].get("labels")
        if labels is None:
            return [{"op": "add", "path": "/metadata/labels", "value": {label: value}}]
        if label in labels:
            return []
        return [{"op": "add", "path": f"/metadata/labels/{label}", "value": value}]

    return FunctionPolicy(name, kinds=["Pod", "ConfigMap"], revision=revision, mutate=mutate)


def deny(name: str, why: str, verbs: Sequence[str] = ("create", "update")) -> FunctionPolicy:
    return FunctionPolicy(name, kinds=["Pod", "ConfigMap"], verbs=verbs, validate=lambda _r, _i: [why])
