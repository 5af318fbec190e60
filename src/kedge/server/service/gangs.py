"""Gang records: which members of a gang hold a reservation, so that all members are bound or none.

A gang record is a Reservation with a `gangSize` and no pod. Every commit that makes, moves or drops a member's
reservation writes that into the record's status. So the record alone proves how many members hold a place, however many
there are, and a new leader resumes from it. Committed and Aborted are final.
"""

from __future__ import annotations

from enum import StrEnum

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.views import ReservationSpec, ReservationView
from kedge.api.wellknown import RESERVATION_KIND
from kedge.errors import Forbidden, Refused
from kedge.keys import NO_REVISION, Key
from kedge.placement.reasons import Reason
from kedge.server.service.core import Core, Proof, part, staged_object
from kedge.store import Put


class Phase(StrEnum):
    """The phase of a gang. A record without a phase is pending."""

    PENDING = "Pending"
    COMMITTED = "Committed"
    ABORTED = "Aborted"


def reservation_key(namespace: str, pod_uid: str) -> Key:
    return Key(RESERVATION_KIND, namespace, pod_uid)


def is_record(spec: ReservationSpec) -> bool:
    return not spec.pod.uid


def phase_of(record: Object) -> Phase:
    return Phase(record.as_view(ReservationView).status.phase or Phase.PENDING)


async def record_of(core: Core, proof: Proof, namespace: str, gang: str) -> Object | None:
    """A gang's record, with the changes of this attempt; None if there is none."""
    key = reservation_key(namespace, gang)
    found = await proof.object(key)
    if found is None:
        write = proof.writes.get(key)
        if not isinstance(write, Put):
            return None
        found = Object(core.kind_of(key), key, write.value, revision=NO_REVISION)
    if not is_record(found.as_view(ReservationView).spec):
        return None
    return staged_object(proof, found)


async def open_record(core: Core, proof: Proof, namespace: str, gang: str) -> Object:
    """The record under which a member reserves; `Refused` if it is deleted or aborted."""
    record = await record_of(core, proof, namespace, gang)
    key = reservation_key(namespace, gang)
    if record is None:
        raise Refused(
            f"the gang {gang} has no record: create it before its members reserve",
            refusal=Reason.GANG_GONE.value,
            key=key,
            revision=NO_REVISION,
        )
    if phase_of(record) is Phase.ABORTED:
        raise Refused(
            f"the gang {gang} was aborted: begin again under another record",
            refusal=Reason.GANG_ABORTED.value,
            key=key,
            revision=record.revision,
        )
    return record


def check_committed(pod: Key, namespace: str, gang: str, record: Object | None) -> None:
    """Raise `Refused` unless the gang of a pod to be bound is committed."""
    if record is not None and phase_of(record) is Phase.COMMITTED:
        return
    state = "has no record" if record is None else f"is {phase_of(record).lower()}"
    raise Refused(
        f"{pod} cannot be bound before its gang is committed: the gang {gang} {state}",
        refusal=Reason.GANG_NOT_COMMITTED.value,
        key=reservation_key(namespace, gang),
        revision=record.revision if record is not None else NO_REVISION,
    )


def check_complete(record: Object) -> None:
    """Raise `Refused` unless enough members hold a place."""
    view = record.as_view(ReservationView)
    held, needed = len(view.status.members), view.spec.gang_size
    if held < needed:
        raise Refused(
            f"the gang {record.key.name} cannot be committed: {held} of its {needed} members hold a place",
            refusal=Reason.GANG_INCOMPLETE.value,
            key=record.key,
            revision=record.revision,
        )


async def register_member(core: Core, proof: Proof, namespace: str, spec: ReservationSpec) -> None:
    """Add a member, with its place, to the gang's record."""
    record = await open_record(core, proof, namespace, spec.gang)
    document = record.edit()
    members = part(part(document, "status"), "members")
    if spec.pod.uid not in members and len(members) >= core.env.limits.gang_members_max:
        raise Forbidden(
            f"the gang {spec.gang} has {len(members)} members already, the most that a gang may have",
            key=record.key,
        )
    core.env.metrics.gauge("kedge_service_gang_members", "Members of the gang last added to").set(len(members) + 1)
    members[spec.pod.uid] = {"name": spec.pod.name, "nodeName": spec.node_name}
    document["status"].setdefault("phase", Phase.PENDING.value)
    proof.put(record.key, encode_object(document))


async def unregister_member(core: Core, proof: Proof, namespace: str, gang: str, pod_uid: str) -> None:
    """Remove a member from the gang's record. A committed record is final and stays as it is."""
    record = await record_of(core, proof, namespace, gang)
    if record is None or phase_of(record) is Phase.COMMITTED:
        return
    document = record.edit()
    members = part(part(document, "status"), "members")
    if members.pop(pod_uid, None) is not None:
        proof.put(record.key, encode_object(document))


def keep_members(proof: Proof, record: Object, held: frozenset[str]) -> None:
    """Remove all members but `held` from the record. That aborts a pending gang."""
    document = record.edit()
    status = part(document, "status")
    if phase_of(record) is Phase.PENDING:
        status["phase"] = Phase.ABORTED.value
    status["members"] = {uid: member for uid, member in part(status, "members").items() if uid in held}
    proof.put(record.key, encode_object(document))


async def drop_reservation(core: Core, proof: Proof, namespace: str, pod_uid: str) -> Object | None:
    """Stage the removal of a pod's reservation, whose claim the caller releases. None if there is none."""
    reservation = await proof.object(reservation_key(namespace, pod_uid))
    if reservation is None:
        return None
    spec = reservation.as_view(ReservationView).spec
    if spec.gang:
        await unregister_member(core, proof, namespace, spec.gang, pod_uid)
    proof.delete(reservation.key)
    return reservation
