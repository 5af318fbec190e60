"""Deletion: mark, wait for the grace period and finalizers, remove.

`plan_deletion` is pure and decides which of these a request does. A removal is staged like any other write, so quotas,
claims and reservations are released in the commit that removes the object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kedge.api.codec import encode_object
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Delete, DeleteCollection, DeleteOptions, List, Written
from kedge.api.timestamps import format_time
from kedge.api.views import PodView
from kedge.api.wellknown import NAMESPACE_KIND, POD_KIND
from kedge.errors import BadRequest, Conflict, NotFound, OperatingError
from kedge.keys import NO_REVISION, Key
from kedge.server.service import operations
from kedge.server.service.access.write_checks import check_delete
from kedge.server.service.admission import AdmissionRequest, Inputs
from kedge.server.service.core import Core, Proof, Staged, check_open_to_callers, part
from kedge.server.service.effects import stage
from kedge.server.service.reads import compile_selectors, list_objects

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_PROPAGATION = {"Foreground": (FOREGROUND,), "Orphan": (ORPHAN,), "Background": ()}


@dataclass(frozen=True, slots=True)
class Remove:
    """Nothing to wait for: remove the object."""


@dataclass(frozen=True, slots=True)
class Mark:
    """It must wait for its grace period or its finalizers. `document` has the deletion timestamp."""

    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """It is already being deleted, at least as fast as this request wants."""


def plan_deletion(kind: Kind, old: Object, options: DeleteOptions, now: datetime) -> Remove | Mark | Wait:
    """Decide the effect of a delete request on an object. Pure."""
    metadata = old.metadata
    grace_s = _grace_s(kind, old, options)
    finalizers = _finalizers(metadata.finalizers, options.propagation)
    waits = bool(finalizers) or (kind.key_kind == NAMESPACE_KIND and bool(old.view.spec.finalizers))
    if grace_s == 0 and not waits:
        return Remove()
    document = old.edit()
    marked: dict[str, Any] = document["metadata"]
    if finalizers:
        marked["finalizers"] = list(finalizers)
    else:
        marked.pop("finalizers", None)
    if metadata.deletion_timestamp is None:
        marked["deletionTimestamp"] = format_time(_later(now, grace_s))
        marked["deletionGracePeriodSeconds"] = grace_s
        if kind.has_generation:
            marked["generation"] = metadata.generation + 1
    elif grace_s < (metadata.deletion_grace_period_seconds or 0):
        # A second request may only shorten the grace period.
        marked["deletionTimestamp"] = format_time(min(_later(now, grace_s), metadata.deletion_timestamp))
        marked["deletionGracePeriodSeconds"] = grace_s
    elif finalizers == metadata.finalizers:
        return Wait()
    if kind.key_kind == NAMESPACE_KIND:
        part(document, "status")["phase"] = "Terminating"
    return Mark(document)


def ready_to_go(kind: Kind, found: Object) -> bool:
    """Whether an object marked for deletion has nothing left to wait for."""
    metadata = found.metadata
    if metadata.deletion_timestamp is None or metadata.finalizers:
        return False
    if kind.key_kind == NAMESPACE_KIND and found.view.spec.finalizers:
        return False
    return not metadata.deletion_grace_period_seconds


async def delete(core: Core, request: Delete, *, only_if: Callable[[Object], bool] = lambda _: True) -> Written:
    """Delete an object. If `only_if` is false of it, it counts as not found."""
    key, options = request.key, request.options
    kind = core.kind_of(key)
    check_open_to_callers(kind)
    check_propagation(key, options)
    chain = core.admission.for_write("delete", kind, "")

    async def attempt(proof: Proof) -> Staged | Written:
        repeat = await operations.first_outcome(core, proof, "delete", key, options, reads=(key,))
        if repeat is not None:
            return repeat
        old = await proof.object(key)
        if old is None or not only_if(old):
            raise NotFound(f'{kind.resource} "{key.name}" not found', key=key)
        check_delete_preconditions(kind, old, options)
        check_delete(core, options, old)
        if chain is not None:
            document = old.edit()
            request = AdmissionRequest("delete", kind, key, "", options.caller, document, document, options.dry_run)

            async def read(keys: Any) -> Inputs:
                return dict(zip(keys, await proof.objects(*keys), strict=True))

            await chain.validate(request, read, proof.note)
        staged = await stage_deletion(core, proof, old, options)
        if proof.writes:
            operations.record(core, proof, "delete", key, options)
        return staged

    return await core.prove(attempt, options)


async def delete_collection(core: Core, request: DeleteCollection) -> Sequence[Written]:
    """Delete each object that the list finds, if its commit still finds that incarnation, and still selected."""
    kind, selection, options = request.kind, request.selection, request.options
    check_open_to_callers(kind)
    matches = compile_selectors(kind, selection.label_selector, selection.field_selector)
    deleted: list[Written] = []
    for found in (await list_objects(core, List(kind, selection))).objects:

        def still_selected(now: Object, uid: str = found.uid) -> bool:
            return now.uid == uid and (matches is None or matches(now))

        origin = options.origin
        if origin.operation:
            origin = origin._replace(
                operation=f"{origin.operation}.{found.uid}"
            )  # each object is an operation of its own
        try:
            own = msgspec.structs.replace(options, origin=origin)
            deleted.append(await delete(core, Delete(found.key, own), only_if=still_selected))
        except NotFound:
            continue
        except OperatingError as error:
            error.written = deleted
            raise
    return deleted


async def stage_deletion(core: Core, proof: Proof, old: Object, options: DeleteOptions) -> Staged:
    """Stage the effect of the request. Eviction deletes through here too."""
    kind, key = old.kind, old.key
    match plan_deletion(kind, old, options, core.env.now()):
        case Remove():
            await stage(core, proof, kind, key, old, None)
            return Staged(kind, key, old.value, created=old.created, removed=True)
        case Mark(document):
            new = Object(kind, key, encode_object(document), revision=NO_REVISION)
            await stage(core, proof, kind, key, old, new)
            return Staged(kind, key, new.value, created=old.created)
        case Wait():
            return Staged(kind, key, old.value, created=old.created)


def check_propagation(key: Key, options: DeleteOptions) -> None:
    if options.propagation and options.propagation not in _PROPAGATION:
        raise BadRequest(f"propagation policy {options.propagation!r} is not one of {', '.join(_PROPAGATION)}", key=key)


def check_delete_preconditions(kind: Kind, old: Object, options: DeleteOptions) -> None:
    if options.uid and options.uid != old.uid:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource} "{old.key.name}": the uid in the precondition'
            f" ({options.uid}) is not the object's uid ({old.uid})",
            key=old.key,
            revision=old.revision,
        )
    if options.revision and options.revision != old.revision:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource} "{old.key.name}": the resourceVersion in the'
            f" precondition ({options.revision}) is not the object's ({old.revision})",
            key=old.key,
            revision=old.revision,
        )


def _later(now: datetime, seconds: int) -> datetime:
    """`now` plus `seconds`, or the last timestamp there is: a grace period may reach past it."""
    end = datetime(9999, 12, 31, tzinfo=UTC)
    return now + timedelta(seconds=min(seconds, int((end - now).total_seconds())))


def _grace_s(kind: Kind, old: Object, options: DeleteOptions) -> int:
    if kind.key_kind != POD_KIND:
        return 0
    pod = old.as_view(PodView)
    if not pod.spec.node_name or pod.finished:
        return 0  # no process runs that needs time to stop
    grace_s = pod.spec.termination_grace_period_seconds if options.grace_s is None else options.grace_s
    return grace_s if grace_s >= 0 else 1


def _finalizers(current: tuple[str, ...], propagation: str) -> tuple[str, ...]:
    if not propagation:
        return current
    kept = tuple(name for name in current if name not in (FOREGROUND, ORPHAN))
    return kept + _PROPAGATION[propagation]
