"""The order of ready keys: strict priority with aging, and fair queueing between the tenants of a priority.

A deficit round robin with a quantum near zero: the tenant that has been served least goes next, ties in turn, and each
tenant is charged the actual time of its runs. No step walks over keys or tenants. Delays and retries are not its job.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from kedge.limits import Limits
from kedge.runtime.queue.entries import RUNNING, QueueEntry
from kedge.runtime.queue.items import K

_MEAN_WEIGHT = 0.25
"""Weight of the newest run in a tenant's mean: four slow runs show, one alone does not."""
_QUICKER = 0.25
"""A slow tenant whose runs take less than this share of the others' may use the reserved workers."""
_LOOK_MAX = 32
"""How many slow tenants, from the least served, are compared with the running ones."""
_SWEEP_MIN = 64
"""Below this a sweep costs more than the void tickets do."""


class Tenant:
    """One tenant over all priorities: its runs in flight, and how long its runs take."""

    __slots__ = ("entries", "in_flight", "mean_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.entries = 0
        """Ready keys. A tenant with none and nothing in flight is dropped."""
        self.mean_s: float | None = None
        """Mean time of its runs; None before the first has ended."""

    def is_slow(self, slow_s: float) -> bool:
        """Whether its next run may hold a worker for long. A new tenant gets one run before it counts as slow."""
        return self.in_flight > 0 if self.mean_s is None else self.mean_s > slow_s


class Lane(Generic[K]):
    """One tenant's ready keys in one priority, in order of arrival."""

    __slots__ = ("band", "credit_s", "entries", "in_flight", "served_s", "tenant", "ticket")

    def __init__(self, band: Band[K], tenant: Tenant) -> None:
        self.band = band
        self.tenant = tenant
        self.entries: OrderedDict[QueueEntry[K], None] = OrderedDict()
        self.in_flight = 0
        self.served_s = band.floor_s
        """Virtual time: the service it has had. Never falls: its place in a heap may be too early, never too late."""
        self.credit_s = 0.0
        """Charged in advance and not used: later charges are taken from it first."""
        self.ticket = 0
        """Its valid ticket in a heap of its band; 0 while it has no key ready."""


class Band(Generic[K]):
    """One priority."""

    __slots__ = ("active", "arrivals", "floor_s", "in_debt", "in_flight", "lanes", "open", "priority", "reserved")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.lanes: dict[str, Lane[K]] = {}
        """With ready keys or runs, or still over their share: leaving does not clear a debt."""
        self.open: list[tuple[float, int, Lane[K]]] = []
        """Lanes with ready keys whose tenants' runs are short, least served first."""
        self.reserved: list[tuple[float, int, Lane[K]]] = []
        """The same for tenants whose runs are long: they may not take every worker."""
        self.in_debt: list[tuple[float, int, Lane[K]]] = []
        """Lanes that became empty over their share, until the others have caught up."""
        self.arrivals: OrderedDict[QueueEntry[K], None] = OrderedDict()
        """Every ready key of this priority, in order of arrival."""
        self.floor_s = 0.0
        """Virtual time of a continuously active tenant. New tenants start here, so idle time earns no credit."""
        self.active = 0
        """Lanes with ready keys or runs."""
        self.in_flight = 0


class Order(Generic[K]):
    """The ready keys, and the runs that are still to be charged."""

    def __init__(self, limits: Limits, *, workers: int = 0) -> None:
        self._limits = limits
        self._workers = workers
        self._slow_in_flight_max = max(1, int(workers * limits.queue_slow_share_max)) if workers > 1 else 0
        self._bands: dict[int, Band[K]] = {}
        self._priorities: list[int] = []
        """The priorities of `_bands`, negated: the highest comes first."""
        self.tenants: dict[str, Tenant] = {}
        self._tickets = 0
        self._since_aged = 0
        self.ready = 0
        self._slow_runs: dict[QueueEntry[K], None] = {}
        """Runs of tenants that were slow or new when the run began. At most one per worker."""

    def __len__(self) -> int:
        return self.ready

    # -- keys come and go --------------------------------------------------------------------------

    def push(self, entry: QueueEntry[K]) -> None:
        """Append a key to the lane of its tenant and priority."""
        band = self._bands.get(entry.priority)
        if band is None:
            band = self._bands[entry.priority] = Band(entry.priority)
            insort(self._priorities, -entry.priority)
        lane = band.lanes.get(entry.tenant)
        if lane is None:
            tenant = self.tenants.get(entry.tenant)
            if tenant is None:
                tenant = self.tenants[entry.tenant] = Tenant(entry.tenant)
            lane = band.lanes[entry.tenant] = Lane(band, tenant)
        if lane.ticket == 0:
            lane.served_s = max(lane.served_s, band.floor_s)
            band.active += not lane.in_flight
            self._enter(lane)
        entry.lane = lane
        lane.entries[entry] = None
        lane.tenant.entries += 1
        band.arrivals[entry] = None
        self.ready += 1

    def remove(self, entry: QueueEntry[K]) -> None:
        """Remove a key, wherever it is in its lane."""
        lane = entry.lane
        del lane.entries[entry]
        lane.tenant.entries -= 1
        del lane.band.arrivals[entry]
        self.ready -= 1
        if not lane.entries:
            lane.ticket = 0
            self._leave(lane)

    def pop(self, now_s: float) -> QueueEntry[K] | None:
        """Take out the next key, as a run of its tenant; call `end` when the run is over.

        None if nothing is ready, or if only slow tenants are and the remaining workers are reserved.
        """
        if not self.ready:
            return None
        self._since_aged += 1
        if len(self._priorities) > 1 and self._since_aged >= self._limits.queue_aged_every:
            lane = self._aged_lane(now_s)
            if lane is not None:
                self._since_aged = 0
                return self._take(lane, aged=True)
        for negated in self._priorities:
            lane = self._least_served(self._bands[-negated])
            if lane is not None:
                return self._take(lane, aged=False)
        return None

    def end(self, entry: QueueEntry[K], used_s: float) -> None:
        """A run is over: charge its tenant the time beyond the charge at the start."""
        lane = entry.lane
        tenant, band = lane.tenant, lane.band
        lane.in_flight -= 1
        band.in_flight -= 1
        tenant.in_flight -= 1
        if entry.reserved:
            del self._slow_runs[entry]
        owed_s = max(used_s, self._limits.queue_service_s_min) - entry.charged_s
        if owed_s > 0:
            self._charge(lane, owed_s)
        else:
            lane.credit_s -= owed_s
        mean_s = tenant.mean_s
        tenant.mean_s = used_s if mean_s is None else mean_s + _MEAN_WEIGHT * (used_s - mean_s)
        if not lane.entries:
            self._leave(lane)

    # -- the choice --------------------------------------------------------------------------------

    def _aged_lane(self, now_s: float) -> Lane[K] | None:
        """A lane of a lower priority that goes next because a key in it has waited too long.

        At most every n-th item is chosen this way, so that a backlog of low priority cannot take over.
        """
        first = True
        oldest_s, chosen = now_s - self._limits.queue_aging_s, None
        for negated in self._priorities:
            band = self._bands[-negated]
            if not band.arrivals:
                continue
            if first:
                first = False  # the highest priority is next anyway
                continue
            ready_s = next(iter(band.arrivals)).ready_s
            if ready_s <= oldest_s and (lane := self._least_served(band)) is not None:
                oldest_s, chosen = ready_s, lane
        return chosen

    def _least_served(self, band: Band[K]) -> Lane[K] | None:
        """The least served lane, of those that may use a worker now."""
        if band.reserved:
            self._settle(band.reserved, slow=True)
        self._settle(band.open, slow=False)
        heads = band.open[:1]
        if self._slow_in_flight_max and len(self._slow_runs) >= self._slow_in_flight_max:
            if any(lane.ticket != ticket for _, ticket, lane in band.reserved[:_LOOK_MAX]):
                _sweep(band.reserved)  # void tickets must not hide a lane
            heads += [each for each in band.reserved[:_LOOK_MAX] if self._is_much_quicker(each[2].tenant)]
        else:
            heads += band.reserved[:1]
        return min(heads)[2] if heads else None

    def _settle(self, heap: list[tuple[float, int, Lane[K]]], *, slow: bool) -> None:
        """Remove void tickets and renew outdated ones, until the first is valid."""
        while heap:
            served_s, ticket, lane = heap[0]
            if lane.ticket != ticket:
                heappop(heap)
            elif lane.served_s != served_s or self._is_reserved(lane) != slow:
                heappop(heap)
                self._enter(lane)
            else:
                return

    def _take(self, lane: Lane[K], *, aged: bool) -> QueueEntry[K]:
        band, tenant = lane.band, lane.tenant
        entry, _ = lane.entries.popitem(last=False)
        tenant.entries -= 1
        del band.arrivals[entry]
        self.ready -= 1
        entry.aged = aged
        entry.state = RUNNING
        entry.reserved = tenant.mean_s is None or tenant.is_slow(self._limits.queue_slow_s)
        if entry.reserved:
            self._slow_runs[entry] = None
        band.floor_s = max(band.floor_s, lane.served_s)
        # Charged before it runs: otherwise several workers would take from one tenant before its first run ends.
        entry.charged_s = max(self._limits.queue_service_s_min, tenant.mean_s or 0.0)
        self._charge(lane, entry.charged_s)
        lane.in_flight += 1
        band.in_flight += 1
        tenant.in_flight += 1
        if lane.entries:
            self._enter(lane)  # behind lanes that have been served as much
        else:
            lane.ticket = 0
        return entry

    def _charge(self, lane: Lane[K], cost_s: float) -> None:
        paid_s = min(lane.credit_s, cost_s)
        lane.credit_s -= paid_s
        cost_s -= paid_s
        band = lane.band
        ceiling_s = max(lane.served_s, band.floor_s + self._limits.queue_debt_s_max)
        cost_s = min(cost_s, ceiling_s - lane.served_s)
        lane.served_s += cost_s
        band.floor_s += cost_s / band.active  # by what was charged: else it overtakes lanes charged less
        if band.in_debt:
            self._forget_caught_up(band)

    # -- places in heaps ---------------------------------------------------------------------------

    def _is_reserved(self, lane: Lane[K]) -> bool:
        return self._slow_in_flight_max > 0 and lane.tenant.is_slow(self._limits.queue_slow_s)

    def _is_much_quicker(self, tenant: Tenant) -> bool:
        """Whether a slow tenant may use a reserved worker: few running tenants are as slow as it.

        Next to runs of minutes a run of a second is quick, and need not wait for them.
        """
        if tenant.mean_s is None:
            return False
        means_s = (run.lane.tenant.mean_s for run in self._slow_runs)
        alike = sum(mean_s is not None and mean_s * _QUICKER <= tenant.mean_s for mean_s in means_s)
        return alike < self._workers - self._slow_in_flight_max

    def _enter(self, lane: Lane[K]) -> None:
        self._tickets += 1
        lane.ticket = self._tickets
        band = lane.band
        heap = band.reserved if self._is_reserved(lane) else band.open
        heappush(heap, (lane.served_s, lane.ticket, lane))
        if len(heap) > _SWEEP_MIN + 2 * len(band.lanes):
            _sweep(heap)

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self, lane: Lane[K]) -> None:
        """Drop a lane that is empty, unless it is over its share."""
        if lane.in_flight or lane.entries:
            return
        band = lane.band
        band.active -= 1
        if lane.served_s > band.floor_s:
            heappush(band.in_debt, (lane.served_s, self._next_ticket(), lane))
        else:
            self._forget(lane)
        if not band.arrivals and not band.in_flight:
            # No lane is left to compete with, so debts end.
            for each in list(band.lanes.values()):
                self._forget(each)
            del self._bands[band.priority]
            self._priorities.remove(-band.priority)

    def _forget_caught_up(self, band: Band[K]) -> None:
        in_debt = band.in_debt
        while in_debt and in_debt[0][0] <= band.floor_s:
            lane = heappop(in_debt)[2]
            if not lane.entries and not lane.in_flight and lane.served_s <= band.floor_s:
                self._forget(lane)

    def _forget(self, lane: Lane[K]) -> None:
        tenant = lane.tenant
        if lane.band.lanes.get(tenant.name) is lane:
            del lane.band.lanes[tenant.name]
        if not tenant.entries and not tenant.in_flight and not self._has_lane(tenant):
            self.tenants.pop(tenant.name, None)

    def _has_lane(self, tenant: Tenant) -> bool:
        return any(tenant.name in band.lanes for band in self._bands.values())

    def _next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    # -- looking -----------------------------------------------------------------------------------

    @property
    def slow_in_flight(self) -> int:
        return len(self._slow_runs)

    def by_priority(self) -> dict[int, int]:
        return {-n: len(self._bands[-n].arrivals) for n in self._priorities if self._bands[-n].arrivals}

    def ready_at(self, priority: int) -> int:
        band = self._bands.get(priority)
        return len(band.arrivals) if band is not None else 0

    def oldest_ready_s(self) -> float | None:
        """When the key that has been ready longest became ready."""
        heads = (next(iter(band.arrivals)).ready_s for band in self._bands.values() if band.arrivals)
        return min(heads, default=None)

    def lanes(self) -> Iterator[Lane[K]]:
        for band in self._bands.values():
            yield from band.lanes.values()


def _sweep(heap: list[tuple[float, int, Lane[K]]]) -> None:
    heap[:] = [each for each in heap if each[2].ticket == each[1]]
    heapify(heap)
