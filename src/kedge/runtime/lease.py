"""Leader election on a Lease, with fencing: at most one candidate leads, and a former leader's writes are rejected.

A candidate measures expiry on its own monotonic clock, from the last change of the lease that it saw; clocks are never
compared. Expiry only decides when a candidate tries. Safety rests on the fence alone: its token is the revision of the
commit that changed the holder, and every write of a leader carries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.timestamps import format_micro_time
from kedge.api.views import LeaseView
from kedge.api.wellknown import LEASE_KIND
from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Conflict, Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key, fence_key
from kedge.logs import INFO
from kedge.observe.recording.process_events import ELECTION
from kedge.observe.records import OutsideEvent
from kedge.tasks import gather_ended

_RECORDED, _UNRECORDED = WriteOptions(), WriteOptions(recorded=False)


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term of one holder."""

    identity: str
    fence: Fence
    """Carried by every write of this term. Caches must reach its revision before the first decision of the term."""


"""The kind of an event about a term of a leader, in the records."""


def no_note(event: OutsideEvent) -> None:
    """For a candidate without records."""
    del event


class LeaderElection:
    """One candidate for one lease. `run` competes, leads while it holds the lease, and competes again after a loss."""

    def __init__(
        self, client: Client, env: Env, lease: Key, *, identity: str, note: Callable[[OutsideEvent], None] = no_note
    ) -> None:
        """`note` takes the begin and the end of each term, for the records."""
        self._client = client
        self._env = env
        self._note = note
        self._limits = env.limits
        self._lease = lease
        self._identity = identity
        self._kind: Kind = client.kinds.of_key_kind(LEASE_KIND)
        self._seen: tuple[int, str] = (-1, "")  # revision and holder, as last observed
        self._seen_at_s = 0.0
        self.leadership: Leadership | None = None
        """The current term; None while this candidate does not lead."""
        self.holding = False
        """Whether the lease is held and not yet released: true for longer than the term, which ends first."""
        self._leading = env.metrics.gauge("kedge_runtime_leading", "1 while this candidate leads", ("lease",)).labels(
            str(lease)
        )
        self._renewals = env.metrics.histogram(
            "kedge_runtime_renewal_seconds", "Duration of a renewal", ("lease",)
        ).labels(str(lease))
        self._terms = env.metrics.counter("kedge_runtime_terms_total", "Terms, by how they ended", ("lease", "end"))

    async def run(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        """Compete and lead, until `lead` returns: then its work is over.

        `lead` runs while the lease is held; it is cancelled, and has ended, before the release. If it raises `Fenced`,
        another candidate has taken over: the term ends, and this candidate competes again.
        """
        while True:
            held = await self._acquire()
            if await self._hold(held, lead):
                return

    # -- competing ---------------------------------------------------------------------------------

    async def _acquire(self) -> Object:
        """Wait until the lease is acquired. Returns the version that acquired it."""
        while True:
            try:
                taken = await self._try_once()
            except OperatingError:
                taken = None  # after any failure, try again later
            if taken is not None:
                return taken
            await asyncio.sleep(jittered(self._limits.lease_retry_s, self._env.random))

    async def _try_once(self) -> Object | None:
        try:
            lease = await self._client.get(self._lease)
        except NotFound:
            return await self._create()
        view = lease.as_view(LeaseView)
        holder = view.spec.holder_identity
        if (lease.revision, holder) != self._seen:
            # The lease has changed: expiry counts from this observation, not from the time in the lease.
            self._seen, self._seen_at_s = (lease.revision, holder), self._env.monotonic()
        duration_s = view.spec.lease_duration_seconds or self._limits.lease_s
        if holder and self._env.monotonic() - self._seen_at_s < duration_s:
            return None
        try:
            return await self._write(lease, self._claim(view.spec.lease_transitions + 1))
        except Conflict:
            return None  # another candidate was faster, or the holder renewed

    async def _create(self) -> Object | None:
        metadata = {"name": self._lease.name, "namespace": self._lease.namespace}
        try:
            return (await self._client.create(self._kind, {"metadata": metadata, "spec": self._claim(0)})).object
        except AlreadyExists:
            return None

    def _claim(self, transitions: int) -> dict[str, Any]:
        now = format_micro_time(self._env.now())
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._limits.lease_s),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    # -- leading -----------------------------------------------------------------------------------

    async def _hold(self, taken: Object, lead: Callable[[Leadership], Awaitable[None]]) -> bool:
        """Lead for one term. Returns whether the work is over."""
        self.leadership = Leadership(self._identity, Fence(fence_key(self._lease), taken.revision))
        self._leading.set(1)
        self.holding = True
        self._note_term("the term of this leader begins", taken)
        work = asyncio.ensure_future(lead(self.leadership))
        renewing = asyncio.ensure_future(self._keep(taken))
        end = "cancelled"
        try:
            await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            end = "lost" if not work.done() else "fenced" if isinstance(_error(work), Fenced) else "done"
        finally:
            # Workers stop before the release: no work of this term overlaps with the next holder.
            self.leadership = None
            self._leading.set(0)
            self._terms.labels(str(self._lease), end).inc()
            self._note_term("the term of this leader has ended", taken, end)
            work.cancel()
            renewing.cancel()
            outcomes = await gather_ended(work, renewing)
            await self._release(taken)
            self.holding = False
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, Fenced):
                raise outcome  # an error of `lead` is not a lost lease: raise it
        return end == "done"

    def _note_term(self, message: str, taken: Object, outcome: str = "") -> None:
        fields = {"key": str(self._lease), "holder": self._identity, "revision": taken.revision, "outcome": outcome}
        self._env.log.write(INFO, message, fields)
        text = f"{self._identity}: {message}" + (f" ({outcome})" if outcome else "")
        self._note(OutsideEvent(self._env.now(), ELECTION, text, str(self._lease), fields))

    async def _keep(self, taken: Object) -> None:
        """Renew. Returns when the lease is lost, or must be assumed lost because no renewal succeeded in time."""
        renewed_at_s = self._env.monotonic()
        last: Object | None = taken
        while True:
            await asyncio.sleep(self._limits.lease_retry_s)
            started_s = self._env.monotonic()
            left_s = renewed_at_s + self._limits.lease_renew_s - started_s
            if left_s <= 0:
                return
            try:
                # An attempt ends well before the deadline, so that the next may still succeed.
                async with asyncio.timeout(min(left_s, self._limits.lease_renew_s / 3)):
                    last = await self._renew(taken.uid, last)
            except (TimeoutError, OperatingError):
                last = None  # it may have changed: read it
                continue
            if last is None:
                return
            renewed_at_s = started_s
            self._renewals.observe(self._env.monotonic() - started_s)

    async def _renew(self, uid: str, last: Object | None) -> Object | None:
        """Write a new renewal time, if this candidate still holds the lease. None if it does not.

        Only the holder writes the lease, so it is as the last renewal left it, or the update conflicts.
        """
        lease = last or await self._client.get(self._lease)
        if lease.uid != uid or lease.as_view(LeaseView).spec.holder_identity != self._identity:
            return None
        try:
            return await self._write(lease, {"renewTime": format_micro_time(self._env.now())}, _UNRECORDED)
        except Conflict:
            if last is None:
                raise
            return await self._renew(uid, None)

    async def _release(self, taken: Object) -> None:
        """Release the lease, so that the next candidate need not wait. If that fails, the lease expires."""
        try:
            async with asyncio.timeout(self._limits.lease_renew_s / 3):
                lease = await self._client.get(self._lease)
                if lease.uid != taken.uid or lease.as_view(LeaseView).spec.holder_identity != self._identity:
                    return
                await self._write(lease, {"holderIdentity": ""})
        except (TimeoutError, OperatingError):
            return

    async def _write(self, lease: Object, spec: dict[str, Any], options: WriteOptions = _RECORDED) -> Object:
        """Change the version of the lease that was read, and no later one."""
        body = lease.edit()
        body["metadata"]["resourceVersion"] = str(lease.revision)
        body["spec"] = {**body.get("spec", {}), **spec}
        return (await self._client.update(self._lease, body, options=options)).object


class SharedElection:
    """One lease for all components of a process: each member leads while the process does.

    One renewal serves all of them. A member whose work is over leaves, and the last one releases the lease.
    """

    def __init__(
        self, client: Client, env: Env, lease: Key, *, identity: str, note: Callable[[OutsideEvent], None] = no_note
    ) -> None:
        self._env = env
        self._election = LeaderElection(client, env, lease, identity=identity, note=note)
        self._running: asyncio.Task[None] | None = None
        self._members: dict[_ElectionMember, None] = {}
        self._joined = asyncio.Event()

    @property
    def leadership(self) -> Leadership | None:
        return self._election.leadership

    @property
    def holding(self) -> bool:
        return self._election.holding

    async def run(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        """Like `LeaderElection.run`, together with the other members."""
        member = _ElectionMember(lead)
        self._members[member] = None
        self._joined.set()
        if self._running is None:
            self._running = self._env.spawn(self._election.run(self._lead), name="election")
        running = self._running
        try:
            await asyncio.wait((member.over, running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._members[member]
            if member.work is not None:  # it stops before the lease may be released
                member.work.cancel()
                await gather_ended(member.work)
            self._joined.set()
            if not self._members and self._running is running:
                self._running = None
                if not member.over.done():
                    running.cancel()
                await asyncio.wait((running,))
        if member.over.done():
            member.over.result()
        else:
            await running  # the election failed, and every member with it

    async def _lead(self, term: Leadership) -> None:
        """Run every member until none is left, or until one raises `Fenced`."""
        try:
            while self._members:
                self._joined.clear()
                for member in self._members:
                    if member.work is None and not member.over.done():
                        member.work = asyncio.ensure_future(member.lead(term))
                works = [member.work for member in self._members if member.work is not None]
                joined: asyncio.Future[Any] = asyncio.ensure_future(self._joined.wait())
                try:
                    await asyncio.wait([joined, *works], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    joined.cancel()
                for member in self._members:
                    member.check_ended()
        finally:
            works = [member.work for member in self._members if member.work is not None]
            for work in works:
                work.cancel()
            if works:
                await gather_ended(*works)
            for member in self._members:
                member.work = None


class _ElectionMember:
    """One component in a shared election."""

    def __init__(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        self.lead = lead
        self.work: asyncio.Future[None] | None = None
        """Its work in the current term."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once its work has returned or raised."""

    def check_ended(self) -> None:
        """Take the result of its work, if it has ended. Raises `Fenced` if the work did: that ends the term for all."""
        if self.work is None or not self.work.done():
            return
        error = _error(self.work)
        if isinstance(error, Fenced):
            raise error
        work, self.work = self.work, None
        if self.over.done() or work.cancelled():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


def _error(work: asyncio.Future[None]) -> BaseException | None:
    return None if work.cancelled() else work.exception()
