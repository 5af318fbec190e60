"""Reserve places for members of a gang: one chunk, one commit, all of it or nothing.

The first chunk makes the gang's record, the last may commit it. Members that hold the requested place already are left
as they are, so a leader that lost a reply, or took over, sends its chunks again.
"""

from __future__ import annotations

from typing import Any

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.requests import GangChunk, GangPlace, Reserve, Written
from kedge.api.timestamps import format_time
from kedge.api.validation import check_object
from kedge.api.views import ReservationView
from kedge.api.wellknown import POD_KIND, RESERVATION_KIND
from kedge.errors import BadRequest, Conflict, check
from kedge.keys import NO_REVISION, Key
from kedge.server.service import claims, gangs, operations
from kedge.server.service.core import Core, Proof, Staged, part
from kedge.server.service.effects import stage
from kedge.server.service.gangs import Phase, reservation_key
from kedge.server.service.namespaces import namespace_key


async def reserve(core: Core, request: Reserve) -> Written:
    """Make or confirm the gang's record and the reservations of some of its members; returns the record.

    Raises:
        Refused: a place no longer fits, or the gang was aborted, or too few members hold a place to commit it. Nothing
            was reserved by this chunk; earlier ones hold.
        Conflict: the record describes another gang, or another attempt. Abort that one first.
    """
    chunk, options = request.chunk, request.options
    limit = core.env.limits.gang_chunk_max
    core.env.metrics.gauge("kedge_service_gang_chunk", "Members in the chunk last reserved").set(len(chunk.places))
    if len(chunk.places) > limit:
        raise BadRequest(f"a chunk reserves for at most {limit} members, not {len(chunk.places)}: send several chunks")
    key = reservation_key(chunk.namespace, chunk.gang)

    async def attempt(proof: Proof) -> Staged | Written:
        repeat = await operations.first_outcome(core, proof, "reserve", key, options)
        if repeat is not None:
            return repeat
        await proof.entries(*_keys(chunk))
        entry = proof.reads[key]
        if entry is None:
            await _stage(core, proof, key, None, _record_spec(chunk))
        else:
            _check_same_gang(core.object_of(entry), chunk)
        for place in chunk.places:
            own = reservation_key(chunk.namespace, place.pod_uid)
            await _stage(core, proof, own, await proof.object(own), _place_spec(chunk, place))
        record = await gangs.record_of(core, proof, chunk.namespace, chunk.gang)
        check(record is not None, "the record was read or made above")
        assert record is not None
        value = record.value
        if chunk.commit and gangs.phase_of(record) is not Phase.COMMITTED:
            value = _committed(proof, record)
        if proof.writes:
            operations.record(core, proof, "reserve", key, options)
        return Staged(record.kind, key, value, created=entry.created if entry is not None else NO_REVISION)

    return await core.prove(attempt, options)


def _keys(chunk: GangChunk) -> list[Key]:
    """All keys that the chunk needs, for one read."""
    keys = {reservation_key(chunk.namespace, chunk.gang): None, namespace_key(chunk.namespace): None}
    for place in chunk.places:
        keys[Key(POD_KIND, chunk.namespace, place.pod)] = None
        keys[reservation_key(chunk.namespace, place.pod_uid)] = None
        keys[claims.node_key(place.node)] = None
        keys[claims.allocation_key(place.node)] = None
    return list(keys)


def _check_same_gang(record: Object, chunk: GangChunk) -> None:
    spec = record.as_view(ReservationView).spec
    recorded = (spec.gang_size, spec.workload_uid, spec.generation)
    if not gangs.is_record(spec) or recorded != (chunk.size, chunk.workload_uid, chunk.generation):
        raise Conflict(
            f"{record.key} is the record of another gang, or of another attempt at this one: delete it to abort that",
            key=record.key,
            revision=record.revision,
        )


def _record_spec(chunk: GangChunk) -> dict[str, Any]:
    return _without_empty(
        workloadUID=chunk.workload_uid,
        generation=chunk.generation,
        gangSize=chunk.size,
        deadline=format_time(chunk.deadline),
    )


def _place_spec(chunk: GangChunk, place: GangPlace) -> dict[str, Any]:
    return _without_empty(
        pod={"name": place.pod, "uid": place.pod_uid},
        nodeName=place.node,
        nodeUID=place.node_uid,
        workloadUID=chunk.workload_uid,
        generation=chunk.generation,
        slot=place.slot,
        gang=chunk.gang,
        deadline=format_time(chunk.deadline),
    )


def _without_empty(**fields: Any) -> dict[str, Any]:
    """The fields that are not empty, as in a manifest."""
    return {name: value for name, value in fields.items() if value}


async def _stage(core: Core, proof: Proof, key: Key, old: Object | None, spec: dict[str, Any]) -> None:
    """Stage a reservation like any other write of one, unless it exists as requested."""
    kind = core.kinds.of_key_kind(RESERVATION_KIND)
    document: dict[str, Any]
    if old is None:
        metadata = {
            "name": key.name,
            "namespace": key.namespace,
            "uid": core.env.new_uid(),
            "creationTimestamp": core.timestamp(),
            "generation": 1,
        }
        document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    else:
        document = old.edit()
        if {**part(document, "spec"), "deadline": spec["deadline"]} == spec:
            return  # a deadline is moved by a patch, not by sending a chunk again
        document["metadata"]["generation"] = old.metadata.generation + 1
    document["spec"] = spec
    value = encode_object(document)
    checked = check_object(kind, value)
    await stage(core, proof, kind, key, old, Object(kind, key, value, revision=NO_REVISION, known_view=checked.view))


def _committed(proof: Proof, record: Object) -> bytes:
    gangs.check_complete(record)
    document = record.edit()
    part(document, "status")["phase"] = Phase.COMMITTED.value
    value = encode_object(document)
    proof.put(record.key, value)
    return value
