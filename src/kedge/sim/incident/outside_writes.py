"""The recorded writes of people and foreign clients, as steps of a scenario at their recorded times.

A write is the difference that it made, so that it can be made again on a cluster that has come out otherwise. Writes of
kedge's own components are left out: those decide again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.wellknown import (
    DEFAULT_ACCOUNT,
    EVENT_KIND,
    LAST_APPLIED,
    LEASE_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    POD_KIND,
    RECORDING_WINDOW_KIND,
    RESERVATION_KIND,
    SERVICE_ACCOUNT_KIND,
)
from kedge.keys import NODE_USER_PREFIX, Key, Origin
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CommitRecord
from kedge.sim.incident.draft import duration, named

_OWN_CALLERS: Final = (
    NODE_USER_PREFIX,
    "system:controller:",
    "system:apiserver",
    "kedge-scheduler",
    "kedge-controllers",
)
_OWN_KINDS: Final = frozenset({LEASE_KIND, EVENT_KIND, NODE_ALLOCATION_KIND, RESERVATION_KIND, RECORDING_WINDOW_KIND})
"""Kinds that components write beside their decisions, and the windows of recordings."""
_SERVER_FIELDS: Final = (
    "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "deletionTimestamp",
    "deletionGracePeriodSeconds", "ownerReferences",
)  # fmt: skip


@dataclass(slots=True)
class OutsideActs:
    """Writes from outside, as steps, and those that no step can express."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def is_outside(origin: Origin) -> bool:
    """Whether a write comes from a person or a foreign client."""
    return not origin.decision and not origin.caller.startswith(_OWN_CALLERS)


def outside_acts(recording: Recording, held: dict[Key, Object], begin: datetime) -> OutsideActs:
    """The writes after `begin`. `held` are the objects then; it is advanced to the last commit."""
    acts = OutsideActs()
    removed = _removals(recording)
    for commit in recording.commits:
        if commit.at <= begin:
            continue
        at = duration((commit.at - begin).total_seconds())
        for step in _steps_of(commit, held, removed, acts):
            acts.steps.append({"at": at, **step})
        for each in commit.written:
            held[each.key] = each
        for key in commit.deleted:
            held.pop(key, None)
    return acts


def _removals(recording: Recording) -> frozenset[Key]:
    """Objects that decisions deleted: a removed version has no origin."""
    return frozenset(
        call.key
        for decision in recording.decisions
        for call in decision.calls
        if call.key is not None and call.verb in ("delete", "confirm ended", "evict")
    )


def _steps_of(
    commit: CommitRecord, held: Mapping[Key, Object], removed: frozenset[Key], acts: OutsideActs
) -> Iterator[dict[str, Any]]:
    outside = [each for each in commit.written if is_outside(each.origin) and not _is_own(each)]
    several = len(commit.written) > 1
    for each in outside:
        before = held.get(each.key)
        if before is None or before.uid != each.uid:
            yield {"admit": manifest_of(each)}
        elif each.metadata.deletion_timestamp is not None and before.metadata.deletion_timestamp is None:
            yield {"delete": _forced(each)}
        else:
            yield from _changes(before, each, several, acts)
    if commit.written:
        return  # versions that vanish with others' writes are the work of the server
    for key in commit.deleted:
        gone = held.get(key)
        if gone is None or _is_own(gone) or key in removed or gone.metadata.deletion_timestamp is not None:
            continue
        yield {"delete": named(key.kind, key.namespace, key.name)}


def _is_own(found: Object) -> bool:
    """Whether only components write it: the server itself makes the default account of a namespace."""
    return found.key.kind in _OWN_KINDS or (
        found.key.kind == SERVICE_ACCOUNT_KIND and found.key.name == DEFAULT_ACCOUNT
    )


def _forced(found: Object) -> Any:
    name = named(found.key.kind, found.key.namespace, found.key.name)
    forced = found.edit()["metadata"].get("deletionGracePeriodSeconds") == 0
    return {"object": name, "force": True} if forced else name


def _changes(before: Object, after: Object, several: bool, acts: OutsideActs) -> Iterator[dict[str, Any]]:
    name = named(after.key.kind, after.key.namespace, after.key.name)
    old, new = _bare(before.edit()), _bare(after.edit())
    old_status, new_status = old.pop("status", None) or {}, new.pop("status", None) or {}
    patch = merge_patch(old, new)
    if after.key.kind == POD_KIND and (patch.get("spec") or {}).get("nodeName"):
        acts.left_out.append(f"{name} was bound by {after.origin.caller or 'another client'}")
        return
    if patch:
        yield {"change": {"object": name, "patch": patch}}
    elif not several and after.key.kind != NAMESPACE_KIND and (status := merge_patch(old_status, new_status)):
        yield {"change": {"object": name, "patch": {"status": status}, "subresource": "status"}}


def manifest_of(found: Object) -> dict[str, Any]:
    """An object as a person would apply it."""
    body = _bare(found.edit())
    body.pop("status", None)
    return body


def _bare(body: dict[str, Any]) -> dict[str, Any]:
    """A body without the fields that only servers set."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _SERVER_FIELDS}
    annotations = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != LAST_APPLIED}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**body, "metadata": metadata}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch from one body to another; empty if they are equal. Lists are replaced as a whole."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif name not in before or old != value:
            patch[name] = value
    return patch
