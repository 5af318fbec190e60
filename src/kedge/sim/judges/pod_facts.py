"""Pods, read without code of the controllers: a judge that shares their predicates shares their mistakes."""

from __future__ import annotations

from kedge.api.owners import controller_of
from kedge.api.views import PodView
from kedge.api.wellknown import AT_MOST_ONE, DRAINING, SLOT


def slot_of(pod: PodView) -> tuple[str, str] | None:
    slot, owner = pod.metadata.annotations.get(SLOT), owner_uid(pod)
    return (owner, slot) if slot is not None and owner else None


def owner_uid(pod: PodView) -> str:
    owner = controller_of(pod)
    return owner.uid if owner is not None else ""


def requires_at_most_one(pod: PodView) -> bool:
    return pod.metadata.annotations.get(AT_MOST_ONE) == "true"


def is_ready(pod: PodView) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def counts(pod: PodView) -> bool:
    """Whether a pod counts as a replica: it has not ended and is not being removed."""
    return not pod.finished and not pod.terminating and DRAINING not in pod.metadata.annotations


def is_healthy(pod: PodView) -> bool:
    return counts(pod) and is_ready(pod)
