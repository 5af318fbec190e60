"""The conditions of a namespace that is being deleted, as in Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.views import NamespaceView
from kedge.controllers.namespace.plan import NamespacePlan

CONTENT, FINALIZERS, FAILURE = (
    "NamespaceContentRemaining",
    "NamespaceFinalizersRemaining",
    "NamespaceDeletionContentFailure",
)


def namespace_events(view: NamespaceView, conditions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    """Reason, text and whether it is a warning, of each condition that becomes true: the deletion waits for that."""
    for each in conditions:
        known = find_condition(view.status.conditions, each["type"])
        if each["status"] == "True" and (known is None or known.status != "True"):
            yield each["reason"], f"The deletion waits for: {each['message']}", each["type"] != CONTENT


def namespace_conditions(view: NamespaceView, plan: NamespacePlan, failure: str) -> list[dict[str, Any]]:
    """The conditions that Kubernetes has; a condition that was never true is left out."""
    remaining = (
        (CONTENT, "SomeResourcesRemain", "ContentRemoved", plan.remaining),
        (FINALIZERS, "SomeFinalizersRemain", "ContentHasNoFinalizers", plan.finalizers),
    )
    found = []
    for type_, reason, otherwise, counts in remaining:
        if counts or find_condition(view.status.conditions, type_) is not None:
            message = ", ".join(f"{name}: {count}" for name, count in sorted(dict(counts).items()))
            found.append(condition(type_, status=bool(counts), reason=reason if counts else otherwise, message=message))
    if failure or find_condition(view.status.conditions, FAILURE) is not None:
        reason = "ContentDeletionFailed" if failure else "ContentDeleted"
        found.append(condition(FAILURE, status=bool(failure), reason=reason, message=failure))
    return found
