"""Reservations: a claim held for one pod, named by the pod's uid, so that a pod can have only one.

A newer generation supersedes it in one commit, which moves the claim. Past its deadline any client may supersede or
remove it. Until then it holds: a clock alone releases nothing. `gangs` has the gang records.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.views import PodView, ReservationSpec, ReservationView
from kedge.api.wellknown import GANG_LABEL, POD_KIND
from kedge.errors import Conflict, FieldError, Invalid, NotFound, Refused
from kedge.keys import NO_REVISION, Key
from kedge.placement.ledger import ClaimState
from kedge.placement.reasons import Reason
from kedge.server.service import claims, gangs
from kedge.server.service.core import Core, Proof, Staged, Unsettled, staged_value
from kedge.server.service.gangs import Phase


async def follow_reservation(core: Core, proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """Keep the claim in step: made with the reservation, moved when it is superseded, released when it is removed."""
    before = old.as_view(ReservationView).spec if old is not None else None
    after = new.as_view(ReservationView).spec if new is not None else None
    if any(spec is not None and gangs.is_record(spec) for spec in (before, after)):
        await _follow_record(core, proof, key, old, new)
        return
    if old is not None and before is not None:
        if after is None:
            await _check_removable(core, proof, old)
        elif before == after or not await _moves(core, proof, old, after):
            return
        await claims.release_reserved(core, proof, before.node_name, before.pod.uid)
        if before.gang and (after is None or after.gang != before.gang):
            await gangs.unregister_member(core, proof, key.namespace, before.gang, before.pod.uid)
    if after is not None:
        await _claim(core, proof, key, after)


async def _claim(core: Core, proof: Proof, key: Key, spec: ReservationSpec) -> None:
    if spec.pod.uid != key.name:
        raise _invalid(key, "metadata.name", "must be the uid of the pod: a pod has one reservation")
    pod_key = Key(POD_KIND, key.namespace, spec.pod.name)
    pod, node = await proof.objects(pod_key, claims.node_key(spec.node_name))
    if pod is None:
        raise NotFound(f'pods "{spec.pod.name}" not found: a reservation needs its pod', key=pod_key)
    claims.check_pod_claimable(pod, spec.pod.uid)
    if pod.as_view(PodView).labels.get(GANG_LABEL, spec.gang) != spec.gang:
        raise _invalid(key, "spec.gang", f"must be the gang that the pod's label {GANG_LABEL} names")
    target = claims.existing_node(node, spec.node_name, spec.node_uid)
    await claims.claim(core, proof, pod, target, ClaimState.RESERVED)
    if spec.gang:
        await gangs.register_member(core, proof, key.namespace, spec)


async def _moves(core: Core, proof: Proof, old: Object, after: ReservationSpec) -> bool:
    """Whether an update moves the claim. `Refused` if a newer generation, or an earlier attempt, holds it."""
    before = old.as_view(ReservationView).spec
    if after.pod != before.pod:
        raise _invalid(old.key, "spec.pod", "a reservation is for one pod: create a new one for another pod")
    if after.generation < before.generation:
        raise Refused(
            f"generation {before.generation} of the workload of {before.pod.name} has a reservation already:"
            f" generation {after.generation} is too old",
            refusal=Reason.SUPERSEDED.value,
            key=old.key,
            revision=old.revision,
        )
    place = (after.node_name, after.node_uid, after.gang)
    if after.generation == before.generation and place == (before.node_name, before.node_uid, before.gang):
        return False  # for example a later deadline: the claim stays
    if after.generation == before.generation and not await may_be_superseded(core, proof, old):
        raise _reserved_elsewhere(old, after.node_name)
    return True


async def may_be_superseded(core: Core, proof: Proof, reservation: Object) -> bool:
    """Whether any client may take it over: its deadline has passed, or its gang was aborted."""
    spec = reservation.as_view(ReservationView).spec
    if has_expired(core, reservation):
        return True
    if not spec.gang:
        return False
    record = await gangs.record_of(core, proof, reservation.key.namespace, spec.gang)
    return record is None or gangs.phase_of(record) is Phase.ABORTED


def has_expired(core: Core, reservation: Object) -> bool:
    deadline = reservation.as_view(ReservationView).spec.deadline
    return deadline is not None and deadline <= core.env.now()


async def _check_removable(core: Core, proof: Proof, reservation: Object) -> None:
    """Once a gang is committed, each member keeps its reservation until it is bound.

    Another member may be bound already, so a passed deadline alone releases nothing. It releases only a reservation on
    which the pod can no longer be bound.
    """
    spec = reservation.as_view(ReservationView).spec
    record = await gangs.record_of(core, proof, reservation.key.namespace, spec.gang) if spec.gang else None
    if record is None or gangs.phase_of(record) is not Phase.COMMITTED:
        return
    if has_expired(core, reservation) and not await _could_be_bound(core, proof, reservation):
        return
    raise Conflict(
        f"the gang {spec.gang} of {spec.pod.name} is committed: bind the pod, move its reservation by a newer"
        " generation, or delete the pod",
        key=record.key,
        revision=record.revision,
    )


async def _could_be_bound(core: Core, proof: Proof, reservation: Object) -> bool:
    """Whether the pod of a member's reservation is still a member, and could be bound on its claim."""
    spec = reservation.as_view(ReservationView).spec
    pod = await proof.object(Key(POD_KIND, reservation.key.namespace, spec.pod.name))
    if pod is not None and pod.as_view(PodView).labels.get(GANG_LABEL, spec.gang) != spec.gang:
        return False
    return await claims.keeps_its_place(core, proof, pod, spec.pod.uid, spec.node_name, spec.node_uid)


# -- pods ------------------------------------------------------------------------------------------


async def release_reservation(core: Core, proof: Proof, namespace: str, pod_uid: str) -> None:
    """Stage the removal of a pod's reservation and of its claim, if it has one."""
    reservation = await gangs.drop_reservation(core, proof, namespace, pod_uid)
    if reservation is not None:
        node = reservation.as_view(ReservationView).spec.node_name
        await claims.release_reserved(core, proof, node, pod_uid)


async def use_reservation(core: Core, proof: Proof, pod: Object, node: str) -> None:
    """A bind consumes the pod's reservation; a reservation on another node forbids the bind.

    A member is bound only once its gang is committed, and only on its reservation under that gang: a late bind under a
    record that was deleted, or never existed, must not place a part of the gang.
    """
    namespace = pod.key.namespace
    reservation = await proof.object(gangs.reservation_key(namespace, pod.uid))
    wanted = pod.as_view(PodView).labels.get(GANG_LABEL, "")
    spec = reservation.as_view(ReservationView).spec if reservation is not None else None
    if wanted and (spec is None or spec.gang != wanted):  # a reservation from before it joined does not count
        record = await gangs.record_of(core, proof, namespace, wanted)
        gangs.check_committed(pod.key, namespace, wanted, record)
        raise Refused(
            f"{pod.key} holds no place under its gang {wanted}: reserve one before the bind",
            refusal=Reason.NOT_RESERVED.value,
            key=gangs.reservation_key(namespace, pod.uid),
            revision=reservation.revision if reservation is not None else NO_REVISION,
        )
    if reservation is None or spec is None:
        return
    if spec.gang:
        record = await gangs.record_of(core, proof, namespace, spec.gang)
        gangs.check_committed(pod.key, namespace, spec.gang, record)
    if spec.node_name != node:
        if not has_expired(core, reservation):
            raise _reserved_elsewhere(reservation, node)
        await claims.release_reserved(core, proof, spec.node_name, pod.uid)
    proof.delete(reservation.key)


def _reserved_elsewhere(held: Object, node: str) -> Refused:
    spec = held.as_view(ReservationView).spec
    return Refused(
        f"{spec.pod.name} is reserved on {spec.node_name}, not on {node}: release the reservation, or supersede it"
        " by a newer generation or after its deadline",
        refusal=Reason.RESERVED_ELSEWHERE.value,
        key=held.key,
        revision=held.revision,
    )


# -- gang records ----------------------------------------------------------------------------------


async def _follow_record(core: Core, proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """A record moves from pending to committed, if enough members hold a place, or to aborted, which releases them."""
    if old is None:
        return
    view, phase = old.as_view(ReservationView), gangs.phase_of(old)
    if new is None:
        await _check_record_removable(core, proof, old)
        return
    after = new.as_view(ReservationView)
    wanted = gangs.phase_of(new)
    if wanted is not phase:
        if phase is not Phase.PENDING:
            raise _invalid(key, "status.phase", f"the gang is {phase.lower()}, and that is final")
        if wanted is Phase.COMMITTED:
            gangs.check_complete(old)
        elif view.status.members and not proof.dry_run:
            raise Unsettled(lambda options: free_members(core, key, old.uid, options))
    if phase is not Phase.PENDING and view.spec != after.spec:
        raise _invalid(key, "spec", f"the gang is {phase.lower()}: start a new gang under another record")


async def _check_record_removable(core: Core, proof: Proof, record: Object) -> None:
    """A record is removed only when no member holds a reservation: those are released first.

    A committed gang's are released only past the deadline, and only if their pods can no longer be bound.
    """
    if proof.dry_run:
        return
    committed = gangs.phase_of(record) is Phase.COMMITTED
    held = await _still_held(core, record)
    if not held:
        return
    if committed and not has_expired(core, record):
        raise Conflict(
            f"the gang {record.key.name} is committed and {len(held)} of its members are not bound yet: bind them, or"
            " delete their pods",
            key=record.key,
            revision=record.revision,
        )
    raise Unsettled(lambda options: free_members(core, record.key, record.uid, options))


async def _still_held(core: Core, record: Object) -> list[str]:
    """Members that have a reservation now.

    The read needs no proof: every commit that makes or moves a reservation under this record writes the record.
    """
    uids = list(record.as_view(ReservationView).status.members)
    keys = [gangs.reservation_key(record.key.namespace, uid) for uid in uids]
    found = (await core.store.get(keys)).entries if keys else ()
    return [uid for uid, entry in zip(uids, found, strict=True) if entry is not None]


async def free_members(core: Core, key: Key, record_uid: str, options: WriteOptions) -> None:
    """Abort a gang that is not committed, and release its members' reservations, in as many commits as that takes.

    A committed gang keeps reservations whose pods can still be bound, and then this raises `Conflict`.
    The first commit aborts the record: after it no member reserves and no client commits. If the server stops half-way,
    the record lists the remaining reservations; deleting it, or a repeat, releases them.
    """
    left = True

    async def attempt(proof: Proof) -> Staged:
        nonlocal left
        record = await proof.object(key)
        if record is None or record.uid != record_uid:
            raise NotFound(f'{core.kind_of(key).resource} "{key.name}" not found', key=key)
        held = await _still_held(core, record)
        kept = held[core.env.limits.gang_chunk_max :]
        for uid in held[: core.env.limits.gang_chunk_max]:
            if gangs.phase_of(record) is Phase.COMMITTED:
                reservation = await proof.object(gangs.reservation_key(key.namespace, uid))
                if reservation is not None:
                    await _check_removable(core, proof, reservation)
            await release_reservation(core, proof, key.namespace, uid)
        gangs.keep_members(proof, record, frozenset(kept))
        left = bool(kept)
        return Staged(record.kind, key, staged_value(proof, record), created=record.created)

    while left:
        try:
            await core.prove(attempt, options)
        except NotFound:
            return


def _invalid(key: Key, path: str, why: str) -> Invalid:
    error = FieldError(path, "FieldValueForbidden", why)
    return Invalid(f'Reservation "{key.name}" is invalid: {error}', key=key, errors=[error])
