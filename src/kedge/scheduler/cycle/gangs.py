"""Gangs: pods that are bound together or not at all.

Members reserve in chunks under one gang record; the last chunk commits it, and only then is any member bound. The next
leader finds the record: it binds the rest of a committed gang, and completes a pending one on the places that are held.
It deletes a record that is aborted or past its deadline, which frees its room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, GangChunk, GangPlace, WriteOptions, Written
from kedge.api.views import PodView, ReservationView
from kedge.api.wellknown import GANG_SIZE, POD_KIND, RESERVATION_KIND, SLOT
from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key, Origin, Revision
from kedge.logs import DECISION
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.queue.scheduling_queue import QueuedPod, SchedulingQueue
from kedge.scheduler.report.attempt_records import AttemptRecords, OpenAttempt
from kedge.scheduler.state.assumptions import Assumption
from kedge.scheduler.state.cluster_state import BY_GANG, ClusterState
from kedge.tasks import gather_ended

_DIGITS_MAX = 9
"""The most digits of a count in an annotation."""


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """One member, its chosen node, and the record of its attempt."""

    queued: QueuedPod
    assumption: Assumption
    node: tuple[str, Revision]
    """Uid and revision of the node that was decided on."""
    record: OpenAttempt


class Gangs:
    """Reserves for and binds whole gangs, for one scheduler."""

    def __init__(
        self,
        client: Client,
        env: Env,
        cluster_state: ClusterState,
        queue: SchedulingQueue,
        binder: Binder,
        attempts: AttemptRecords,
    ) -> None:
        self._client = client
        self._env = env
        self._cluster_state = cluster_state
        self._queue = queue
        self._binder = binder
        self._attempts = attempts
        self._results = env.metrics.counter("kedge_scheduler_gangs_total", "Gangs tried, by result", ("result",))

    def record_of(self, gang: tuple[str, str]) -> Object | None:
        """The gang record in the cache, if there is one."""
        found = self._cluster_state.caches[RESERVATION_KIND].get(Key(RESERVATION_KIND, *gang)).value
        return found if found is not None and not found.as_view(ReservationView).spec.pod.uid else None

    def may_go_on(self, record: Object, members: Sequence[QueuedPod]) -> bool:
        """Whether an attempt may complete this record: it is pending, in time, of this size, and its nodes take pods.

        An expired record is not extended: repair may free its reservations at any moment.
        """
        view = record.as_view(ReservationView)
        state = self._cluster_state
        held = {uid for uid in view.status.members if state.reserved_node(uid)}
        return (
            view.status.phase not in ("Committed", "Aborted")
            and view.spec.gang_size == len(members)
            and view.spec.deadline is not None
            and view.spec.deadline > self._env.now()
            and held <= {each.uid for each in members}
            and all(self._takes_pods(state.reserved_node(uid)) for uid in held)
        )

    def _takes_pods(self, node: str) -> bool:
        snapshot = self._cluster_state.snapshot
        row = snapshot.find(node)
        return row is not None and not (
            snapshot.cordoned[row.row] or snapshot.suspect[row.row] or snapshot.terminating[row.row]
        )

    def missing(self, members: Sequence[QueuedPod]) -> str:
        """Why the gang cannot be tried yet; empty if it is complete."""
        first = members[0]
        gang = first.gang
        assert gang is not None
        size = size_of(first.pod)
        if size is None or any(size_of(each.pod) != size for each in members):
            return f"gang {gang[1]}: set the annotation {GANG_SIZE} to the number of members, the same on every member"
        placed = sum(
            pod.key.namespace == gang[0] and bool(pod.as_view(PodView).spec.node_name)
            for pod in self._cluster_state.found_by(POD_KIND, BY_GANG, gang[1])
        )
        if len(members) + placed < size:
            return f"gang {gang[1]}: {len(members) + placed} of its {size} members exist"
        return ""

    async def reserve_and_bind(self, gang: tuple[str, str], members: Sequence[MemberPlacement], fence: Fence) -> None:
        """Reserve for all, commit, bind all. A failure before the commit releases everything."""
        try:
            await self._reserve(gang, members, fence)
        except Fenced:
            raise
        except OperatingError as error:
            self._results.labels(type(error).__name__.lower()).inc()
            await self.release_uncommitted(gang, fence)
            for member in members:
                self._binder.return_to_queue(member.queued, member.assumption, error, fence, member.record)
                self._attempts.abandoned(member.record, f"gang {gang[1]} could not reserve room", error)
            return
        self._results.labels("committed").inc()
        await self.bind_committed(gang, members, (), fence)

    async def bind_committed(
        self, gang: tuple[str, str], members: Sequence[MemberPlacement], others: Sequence[QueuedPod], fence: Fence
    ) -> None:
        """Bind the members of a committed gang. `others` hold no room under its record, and wait until it is deleted.

        They replaced a member after the commit, or their node was deleted; that reservation is released after the
        record's deadline. The record is deleted when no reservation is left under it.
        """
        binds = [self._binder.bind(each.queued, each.assumption, each.node, fence, each.record) for each in members]
        # Wait for all, also if one fails: a bind must not end while a later term is trying its pod.
        ended = await gather_ended(*binds)
        for failure in filter(None, ended):
            raise failure
        await self._delete_record(gang, fence)
        for other in others:
            self._queue.failed(other)

    async def abandon(self, gang: tuple[str, str], members: Sequence[QueuedPod], fence: Fence) -> None:
        """Delete the uncommitted record of an earlier attempt, and retry the members."""
        self._results.labels("abandoned").inc()
        await self.release_uncommitted(gang, fence)
        for member in members:
            self._queue.failed(member)

    async def _reserve(self, gang: tuple[str, str], members: Sequence[MemberPlacement], fence: Fence) -> None:
        limits = self._env.limits
        deadline = self._env.now() + timedelta(seconds=limits.gang_wait_s)
        size = limits.gang_chunk_max
        workload = self._cluster_state.policies.workload_of(members[0].queued.pod.as_view(PodView)).uid
        for start in range(0, len(members), size):
            chunk = members[start : start + size]
            places = [
                GangPlace(
                    pod=each.queued.key.name,
                    pod_uid=each.queued.uid,
                    node=each.assumption.node,
                    node_uid=each.node[0],
                    slot=slot_of(each.queued.pod),  # members of one workload differ in it: each has its own intent
                )
                for each in chunk
            ]
            made = GangChunk(
                namespace=gang[0],
                gang=gang[1],
                size=len(members),
                deadline=deadline,
                workload_uid=workload,
                places=places,
                commit=start + size >= len(members),
            )
            await self._reserve_chunk(made, members[0].record, fence)

    async def _reserve_chunk(self, chunk: GangChunk, record: OpenAttempt, fence: Fence) -> None:
        reply: Written | None = None
        error: OperatingError | None = None
        DECISION.set(record.id)
        self._attempts.reserving_chunk(record, chunk)
        try:
            options = WriteOptions(fence=fence, origin=Origin(decision=record.id))
            reply = await self._client.reserve(chunk, options=options)
        except OperatingError as failed:
            error = failed
            raise
        finally:
            if reply is not None or error is not None:
                self._attempts.reserved_chunk(record, reply, error)

    async def release_uncommitted(self, gang: tuple[str, str], fence: Fence) -> None:
        """Delete the gang record unless it is committed. That frees its reservations."""
        key = Key(RESERVATION_KIND, *gang)
        while True:
            try:
                found = await self._client.find(key)
                if found is None or found.as_view(ReservationView).status.phase == "Committed":
                    return
                await self._delete(found, DeleteOptions(uid=found.uid, revision=found.revision, fence=fence))
                return
            except NotFound:
                return
            except Fenced:
                raise
            except OperatingError:
                await asyncio.sleep(jittered(self._env.limits.client_backoff_s_max, self._env.random))

    async def _delete_record(self, gang: tuple[str, str], fence: Fence) -> None:
        """Every member is bound: the gang record is not needed any more."""
        key = Key(RESERVATION_KIND, *gang)
        try:
            found = await self._client.find(key)
            if found is not None:
                await self._delete(found, DeleteOptions(uid=found.uid, fence=fence))
        except Fenced:
            raise
        except OperatingError:
            return  # a reservation is left, or the call failed: the next attempt, or repair, deletes it

    async def _delete(self, gang: Object, options: DeleteOptions) -> None:
        assert options.fence is not None
        record = self._attempts.begin_release(gang, options.fence)
        DECISION.set(record.id)
        reply: Written | None = None
        error: OperatingError | None = None
        try:
            reply = await self._client.delete(gang.key, replace(options, origin=Origin(decision=record.id)))
        except OperatingError as failed:
            error = failed
            raise
        finally:
            if reply is not None or error is not None:
                self._attempts.released(record, reply, error)


def slot_of(pod: Object) -> int:
    """The slot of a pod in its workload; 0 if it has none."""
    return _number(pod.metadata.annotations.get(SLOT, "")) or 0


def size_of(pod: Object) -> int | None:
    """The size of the pod's gang; None if the annotation is missing or not a count."""
    return _number(pod.metadata.annotations.get(GANG_SIZE, "")) or None


def _number(text: str) -> int | None:
    """A plain count. An annotation may hold any text: digits of other scripts, or too many for an int."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
