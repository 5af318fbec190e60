"""Filters on a node alone: its flags, name, taints and labels. They change with nodes, not with pods.

The order is that of `placement.predicates`; a property test holds each mask equal to its predicate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kedge.api.selectors import NodeTerm, Requirement
from kedge.api.views import Taint, Toleration
from kedge.api.wellknown import UNSCHEDULABLE_TAINT
from kedge.placement.predicates import tolerates
from kedge.placement.reasons import Reason
from kedge.scheduler.pipeline.filters.blockers import Blocker
from kedge.scheduler.state.columns import EVERY, Bools, Ids, Rows
from kedge.scheduler.state.shapes import Wants
from kedge.scheduler.state.snapshot import NAME, Snapshot

_CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect="NoSchedule")
_FORBIDDING = frozenset({"NoSchedule", "NoExecute"})
_FIELD = "metadata.name"


def node_failures(snapshot: Snapshot, wants: Wants, rows: Rows = EVERY) -> Iterator[tuple[Blocker, Bools]]:
    """Each filter in order, with the rows that fail it. Filters that cannot fail for this shape are left out."""
    yield Blocker(Reason.NODE_TERMINATING), snapshot.terminating[rows]
    if not is_tolerated(_CORDON, wants.tolerations):
        yield Blocker(Reason.NODE_CORDONED), snapshot.cordoned[rows]
    yield Blocker(Reason.NODE_SUSPECT), snapshot.suspect[rows]
    if wants.node_name:
        names = snapshot.column(NAME)
        yield Blocker(Reason.NODE_NAME), names.ids[rows] != names.find(wants.node_name)
    yield Blocker(Reason.TAINT), ~tolerated(snapshot, wants.tolerations, rows)
    if wants.selector:
        yield Blocker(Reason.NODE_SELECTOR), ~has_labels(snapshot, wants, rows)
    if wants.required is not None:
        yield Blocker(Reason.NODE_AFFINITY), ~meets_any(snapshot, wants.required.terms, rows)


def tolerated(snapshot: Snapshot, tolerations: tuple[Toleration, ...], rows: Rows = EVERY) -> Bools:
    """The rows none of whose taints forbids a pod with these tolerations."""
    sets, places = _taint_sets(snapshot, rows)
    return np.asarray(
        [
            all(taint.effect not in _FORBIDDING or is_tolerated(taint, tolerations) for taint in taints)
            for taints in sets
        ],
        np.bool_,
    )[places]


def unwelcome(snapshot: Snapshot, tolerations: tuple[Toleration, ...], rows: Rows = EVERY) -> Ids:
    """How many taints of each row only ask a pod to stay away, and are not tolerated."""
    heard = tuple(t for t in tolerations if t.effect in ("", "PreferNoSchedule"))
    sets, places = _taint_sets(snapshot, rows)
    return np.asarray(
        [
            sum(taint.effect == "PreferNoSchedule" and not is_tolerated(taint, heard) for taint in taints)
            for taints in sets
        ],
        np.int32,
    )[places]


def _taint_sets(snapshot: Snapshot, rows: Rows) -> tuple[list[tuple[Taint, ...]], Ids]:
    """The different sets of taints among the rows, and which of them each row has."""
    ids = snapshot.taints[rows]
    if len(snapshot.taint_sets) <= 16:
        return snapshot.taint_sets, ids
    present, places = np.unique(ids, return_inverse=True)
    return [snapshot.taint_sets[i] for i in present.tolist()], places.astype(np.int32)


def selected(snapshot: Snapshot, wants: Wants, rows: Rows = EVERY) -> Bools:
    """The rows that the pod's node selector and required node affinity admit."""
    admitted = has_labels(snapshot, wants, rows)
    if wants.required is not None:
        admitted &= meets_any(snapshot, wants.required.terms, rows)
    return admitted


def has_labels(snapshot: Snapshot, wants: Wants, rows: Rows) -> Bools:
    found = np.ones(len(snapshot.exists[rows]), np.bool_)
    for key, value in wants.selector:
        column = snapshot.column(key)
        found &= column.ids[rows] == column.find(value)
    return found


def meets_any(snapshot: Snapshot, terms: tuple[NodeTerm, ...], rows: Rows) -> Bools:
    """The rows that meet at least one term; a term that asks nothing is met by none."""
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


def is_tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)
