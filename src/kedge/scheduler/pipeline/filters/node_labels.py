"""Filters on a node's name and labels: `nodeName`, node selector, required node affinity.

A property test holds each mask equal to its predicate in `placement.predicates`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from kedge.api.selectors import NodeTerm, Requirement
from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import NodeFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import EVERY, Bools, Rows
from kedge.scheduler.state.shapes import PodRequirements
from kedge.scheduler.state.snapshot import NAME, Snapshot

_FIELD = "metadata.name"


class _LabelFilter(NodeFilter):
    unblocked_by = ClusterEvent.NODE

    def __init__(self, snapshot: Snapshot, requirements: PodRequirements) -> None:
        self._snapshot = snapshot
        self._requirements = requirements


class NodeNameFilter(_LabelFilter):
    reason = Reason.NODE_NAME
    label = BLOCKER_LABELS[Reason.NODE_NAME]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        requirements = context.shape.requirements
        return (cls(context.snapshot, requirements),) if requirements.node_name else ()

    def mask(self, rows: Rows) -> Bools:
        names = self._snapshot.column(NAME)
        named: Bools = names.ids[rows] == names.find(self._requirements.node_name)
        return named


class NodeSelectorFilter(_LabelFilter):
    reason = Reason.NODE_SELECTOR
    label = BLOCKER_LABELS[Reason.NODE_SELECTOR]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        requirements = context.shape.requirements
        return (cls(context.snapshot, requirements),) if requirements.selector else ()

    def mask(self, rows: Rows) -> Bools:
        return has_labels(self._snapshot, self._requirements, rows)


class NodeAffinityFilter(_LabelFilter):
    reason = Reason.NODE_AFFINITY
    label = BLOCKER_LABELS[Reason.NODE_AFFINITY]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        requirements = context.shape.requirements
        return (cls(context.snapshot, requirements),) if requirements.required is not None else ()

    def mask(self, rows: Rows) -> Bools:
        terms = self._requirements.required.terms if self._requirements.required is not None else ()
        return meets_any(self._snapshot, terms, rows)


def selected(snapshot: Snapshot, requirements: PodRequirements, rows: Rows = EVERY) -> Bools:
    """The rows that the pod's node selector and required node affinity admit."""
    admitted = has_labels(snapshot, requirements, rows)
    if requirements.required is not None:
        admitted &= meets_any(snapshot, requirements.required.terms, rows)
    return admitted


def has_labels(snapshot: Snapshot, requirements: PodRequirements, rows: Rows) -> Bools:
    found = np.ones(len(snapshot.exists[rows]), np.bool_)
    for key, value in requirements.selector:
        column = snapshot.column(key)
        found &= column.ids[rows] == column.find(value)
    return found


def meets_any(snapshot: Snapshot, terms: tuple[NodeTerm, ...], rows: Rows) -> Bools:
    """The rows that meet at least one term. No row meets a term without requirements."""
    found = np.zeros(len(snapshot.exists[rows]), np.bool_)
    for term in terms:
        if not term.expressions and not term.fields:
            continue
        met = np.ones(len(found), np.bool_)
        for requirement in term.expressions:
            met &= snapshot.column(requirement.key).meets(requirement, rows)
        for requirement in term.fields:
            met &= _meets_field(snapshot, requirement, rows)
        found |= met
    return found


def _meets_field(snapshot: Snapshot, requirement: Requirement, rows: Rows) -> Bools:
    if requirement.key != _FIELD:
        return np.full(len(snapshot.exists[rows]), requirement.matches({}))
    renamed = Requirement(NAME, requirement.operator, requirement.values)
    return snapshot.column(NAME).meets(renamed, rows)
