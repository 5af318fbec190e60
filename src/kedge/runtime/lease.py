"""Leader election on a Lease, fenced: at most one candidate leads, and a deposed one's writes do not land.

Expiry is judged on the candidate's own monotonic clock, since it last saw the lease change; clocks are never
compared. That only decides who tries. Safety rests on the fence alone: its token is the revision of the commit
that changed the holder, and every write of a leader carries it.
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

_RECORDED, _UNRECORDED = WriteOptions(), WriteOptions(recorded=False)


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term of one holder."""

    identity: str
    fence: Fence
    """To accompany every write of this term. Caches must have reached its revision before the term's first decision."""


class LeaderElection:
    """One candidate for one lease. `run` competes, leads while it holds, and competes again when it lost."""

    def __init__(self, client: Client, env: Env, lease: Key, *, identity: str) -> None:
        self._client = client
        self._env = env
        self._limits = env.limits
        self._lease = lease
        self._identity = identity
        self._kind: Kind = client.kinds.of_key_kind(LEASE_KIND)
        self._seen: tuple[int, str] = (-1, "")  # revision and holder, as last observed
        self._seen_at_s = 0.0
        self.leadership: Leadership | None = None
        """The term at hand; None while somebody else, or nobody, leads."""
        self.holding = False
        """Whether the lease is ours and not let go yet: true for longer than the term, which ends first."""
        self._leading = env.metrics.gauge("kedge_runtime_leading", "1 while this candidate leads", ("lease",)).labels(
            str(lease)
        )
        self._renewals = env.metrics.histogram(
            "kedge_runtime_renewal_seconds", "Time a renewal took", ("lease",)
        ).labels(str(lease))
        self._terms = env.metrics.counter(
            "kedge_runtime_terms_total", "Terms begun, and how they ended", ("lease", "end")
        )

    async def run(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        """Compete, and lead, until `lead` returns by itself: then its work is over.

        `lead` is run while the lease is held; it is cancelled, and has ended, before release. One that raises `Fenced`
        was deposed and did not know it: the term is over, and the competition goes on.
        """
        while True:
            held = await self._acquire()
            if await self._hold(held, lead):
                return

    # -- competing ---------------------------------------------------------------------------------

    async def _acquire(self) -> Object:
        """Wait until the lease is ours. Returns it as the commit left it that made it so."""
        while True:
            try:
                taken = await self._try_once()
            except OperatingError:
                taken = None  # whatever it was, trying again later is all there is to do
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
            # Somebody lives: count from when we saw it, whatever time they wrote.
            self._seen, self._seen_at_s = (lease.revision, holder), self._env.monotonic()
        duration_s = view.spec.lease_duration_seconds or self._limits.lease_s
        if holder and self._env.monotonic() - self._seen_at_s < duration_s:
            return None
        try:
            return await self._write(lease, self._claim(view.spec.lease_transitions + 1))
        except Conflict:
            return None  # another was quicker, or the holder renewed after all

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
        """Lead for one term. Whether the work is over."""
        self.leadership = Leadership(self._identity, Fence(fence_key(self._lease), taken.revision))
        self._leading.set(1)
        self.holding = True
        work = asyncio.ensure_future(lead(self.leadership))
        renewing = asyncio.ensure_future(self._keep(taken))
        end = "cancelled"
        try:
            await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            end = "lost" if not work.done() else "fenced" if isinstance(_error(work), Fenced) else "done"
        finally:
            # Workers stop before the lease is let go: whoever takes it next finds nobody at work.
            self.leadership = None
            self._leading.set(0)
            self._terms.labels(str(self._lease), end).inc()
            work.cancel()
            renewing.cancel()
            outcomes = await asyncio.gather(work, renewing, return_exceptions=True)
            await self._release(taken)
            self.holding = False
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, Fenced):
                raise outcome  # a leader that fails is not a leader that lost: its failure is the caller's to see
        return end == "done"

    async def _keep(self, taken: Object) -> None:
        """Renew. Returns when the lease is lost, or must be taken for lost because no renewal came through in time."""
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
                last = None  # perhaps it is not as we know it: read it
                continue
            if last is None:
                return
            renewed_at_s = started_s
            self._renewals.observe(self._env.monotonic() - started_s)

    async def _renew(self, uid: str, last: Object | None) -> Object | None:
        """Write a new renewal time, if the lease is still ours. None if it is not.

        Nobody else writes it while we hold it, so it is as our last write left it, or the update conflicts.
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
        """Let go, so that the next need not wait. If that fails, the lease runs out by itself."""
        try:
            async with asyncio.timeout(self._limits.lease_renew_s / 3):
                lease = await self._client.get(self._lease)
                if lease.uid != taken.uid or lease.as_view(LeaseView).spec.holder_identity != self._identity:
                    return
                await self._write(lease, {"holderIdentity": ""})
        except (TimeoutError, OperatingError):
            return

    async def _write(self, lease: Object, spec: dict[str, Any], options: WriteOptions = _RECORDED) -> Object:
        """Change the lease as it was read, and no later version of it."""
        body = lease.edit()
        body["metadata"]["resourceVersion"] = str(lease.revision)
        body["spec"] = {**body.get("spec", {}), **spec}
        return (await self._client.update(self._lease, body, options=options)).object


class SharedElection:
    """One lease for all components of a process: each that joins leads while the process does.

    One renewal then stands for all of them. A member whose work is over leaves, and the last one lets go of the lease.
    """

    def __init__(self, client: Client, env: Env, lease: Key, *, identity: str) -> None:
        self._env = env
        self._election = LeaderElection(client, env, lease, identity=identity)
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
        """As `LeaderElection.run`, beside the other members."""
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
            if member.work is not None:  # it stops before the lease may be let go
                member.work.cancel()
                await asyncio.gather(member.work, return_exceptions=True)
            self._joined.set()
            if not self._members and self._running is running:
                self._running = None
                if not member.over.done():
                    running.cancel()
                await asyncio.wait((running,))
        if member.over.done():
            member.over.result()
        else:
            await running  # it failed, and took everybody with it

    async def _lead(self, term: Leadership) -> None:
        """Let every member lead until none is left, or one of them finds the term over."""
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
                    member.look()
        finally:
            works = [member.work for member in self._members if member.work is not None]
            for work in works:
                work.cancel()
            if works:
                await asyncio.gather(*works, return_exceptions=True)
            for member in self._members:
                member.work = None


class _ElectionMember:
    """One component's part in a shared election."""

    def __init__(self, lead: Callable[[Leadership], Awaitable[None]]) -> None:
        self.lead = lead
        self.work: asyncio.Future[None] | None = None
        """Its part of the term at hand."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once its work has ended by itself."""

    def look(self) -> None:
        """See whether its work has ended. Raises `Fenced` if it was deposed: that ends the term for all."""
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
