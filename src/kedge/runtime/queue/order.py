"""Which ready key is next: strict priority with aging, and inside a priority each tenant its share of time.

A deficit round robin whose quantum tends to nothing: the tenant that has been served least goes next, ties in turn, and
what a run really took is charged to its tenant. No step walks over keys or tenants. Knows nothing of delays or retries.
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
"""Of the newest run in a tenant's mean: four slow runs show, one does not damn."""
_QUICKER = 0.25
"""A tenant whose runs take less than this part of the slowest's may have the workers that are kept from it."""
_LOOK_MAX = 32
"""Slow tenants, from the least served, among whom one is looked for that is quick beside those who run."""
_SWEEP_MIN = 64
"""Void tickets below this cost less than a sweep."""


class Tenant:
    """One tenant over all priorities: how much it has running, and how long its runs take."""

    __slots__ = ("entries", "in_flight", "mean_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.entries = 0
        """Ready keys. A tenant with none, and nothing in flight, is forgotten."""
        self.mean_s: float | None = None
        """Of its runs; None before the first has ended."""

    def is_slow(self, slow_s: float) -> bool:
        """Whether its next run may hold a worker for long. One that is not known yet may show itself once."""
        return self.in_flight > 0 if self.mean_s is None else self.mean_s > slow_s


class Lane(Generic[K]):
    """One tenant's ready keys in one priority, in order of coming."""

    __slots__ = ("band", "credit_s", "entries", "in_flight", "served_s", "tenant", "ticket")

    def __init__(self, band: Band[K], tenant: Tenant) -> None:
        self.band = band
        self.tenant = tenant
        self.entries: OrderedDict[QueueEntry[K], None] = OrderedDict()
        self.in_flight = 0
        self.served_s = band.floor_s
        """Time it has had. Never falls, so a lane's place in a heap may be too early but never too late."""
        self.credit_s = 0.0
        """Charged in advance and not used: the next charges are paid from it."""
        self.ticket = 0
        """Its valid ticket in a heap of its band; 0 while it has no key ready."""


class Band(Generic[K]):
    """One priority."""

    __slots__ = ("active", "arrivals", "floor_s", "in_flight", "lanes", "lingering", "open", "priority", "reserved")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.lanes: dict[str, Lane[K]] = {}
        """With ready keys or runs, or with more than their share behind them, which they cannot shed by leaving."""
        self.open: list[tuple[float, int, Lane[K]]] = []
        """Lanes with ready keys whose tenants' runs are short, least served first."""
        self.reserved: list[tuple[float, int, Lane[K]]] = []
        """Likewise, of tenants whose runs are long: they may not take every worker."""
        self.lingering: list[tuple[float, int, Lane[K]]] = []
        """Lanes that left with more than their share, until the others have caught up."""
        self.arrivals: OrderedDict[QueueEntry[K], None] = OrderedDict()
        """Every ready key of this priority, in order of coming."""
        self.floor_s = 0.0
        """What a tenant has had that was always there. Who comes new begins here: nobody saves up by staying away."""
        self.active = 0
        """Lanes with ready keys or runs."""
        self.in_flight = 0


class Order(Generic[K]):
    """The ready keys, and the runs that their tenants still have to pay for."""

    def __init__(self, limits: Limits, *, workers: int = 0) -> None:
        self._limits = limits
        self._workers = workers
        self._slow_in_flight_max = max(1, int(workers * limits.queue_slow_share_max)) if workers > 1 else 0
        self._bands: dict[int, Band[K]] = {}
        self._priorities: list[int] = []
        """Of `_bands`, negated: the highest comes first."""
        self.tenants: dict[str, Tenant] = {}
        self._tickets = 0
        self._since_aged = 0
        self.ready = 0
        self._slow_runs: dict[QueueEntry[K], None] = {}
        """Runs of tenants that were slow, or not known, when the run began. No more than there are workers."""

    def __len__(self) -> int:
        return self.ready

    # -- keys come and go --------------------------------------------------------------------------

    def push(self, entry: QueueEntry[K]) -> None:
        """Put a key in line, behind those of its tenant and priority."""
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
        """Take a key out of line, wherever it stands."""
        lane = entry.lane
        del lane.entries[entry]
        lane.tenant.entries -= 1
        del lane.band.arrivals[entry]
        self.ready -= 1
        if not lane.entries:
            lane.ticket = 0
            self._leave(lane)

    def pop(self, now_s: float) -> QueueEntry[K] | None:
        """Take the next key out, as a run of its tenant. `end` it.

        None if nothing is ready, or if what is ready must leave the last workers to others.
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
        """A run is over: its tenant pays what it took beyond what it was charged at the start."""
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
        """A lane of a lower priority whose turn it is because a key there has waited too long.

        At most every n-th item is given away like this, so that much old work of low priority cannot take over.
        """
        first = True
        oldest_s, chosen = now_s - self._limits.queue_aging_s, None
        for negated in self._priorities:
            band = self._bands[-negated]
            if not band.arrivals:
                continue
            if first:
                first = False  # the highest is next anyway
                continue
            ready_s = next(iter(band.arrivals)).ready_s
            if ready_s <= oldest_s and (lane := self._least_served(band)) is not None:
                oldest_s, chosen = ready_s, lane
        return chosen

    def _least_served(self, band: Band[K]) -> Lane[K] | None:
        """The lane that has had least, of those that may have a worker now."""
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
        """Get void and outdated tickets out of the way, until the first is true."""
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
        # Charged before it runs: several workers would else all take from one tenant before its first run ends.
        entry.charged_s = max(self._limits.queue_service_s_min, tenant.mean_s or 0.0)
        self._charge(lane, entry.charged_s)
        lane.in_flight += 1
        band.in_flight += 1
        tenant.in_flight += 1
        if lane.entries:
            self._enter(lane)  # behind those that have had as much
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
        band.floor_s += cost_s / band.active  # of what was charged: else the floor would overtake those who paid less
        if band.lingering:
            self._forget_caught_up(band)

    # -- places in heaps ---------------------------------------------------------------------------

    def _is_reserved(self, lane: Lane[K]) -> bool:
        return self._slow_in_flight_max > 0 and lane.tenant.is_slow(self._limits.queue_slow_s)

    def _is_much_quicker(self, tenant: Tenant) -> bool:
        """Whether a slow tenant may have a worker that is kept free: it has few runs beside it that are like its own.

        Beside runs of minutes one of a second is quick, and need not wait for them.
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
        """A lane with nothing left is forgotten, unless it has had more than its share."""
        if lane.in_flight or lane.entries:
            return
        band = lane.band
        band.active -= 1
        if lane.served_s > band.floor_s:
            heappush(band.lingering, (lane.served_s, self._next_ticket(), lane))
        else:
            self._forget(lane)
        if not band.arrivals and not band.in_flight:
            # Nobody is left to compete with, so nobody owes anything.
            for each in list(band.lanes.values()):
                self._forget(each)
            del self._bands[band.priority]
            self._priorities.remove(-band.priority)

    def _forget_caught_up(self, band: Band[K]) -> None:
        lingering = band.lingering
        while lingering and lingering[0][0] <= band.floor_s:
            lane = heappop(lingering)[2]
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
        """When the key that has been ready longest became so."""
        heads = (next(iter(band.arrivals)).ready_s for band in self._bands.values() if band.arrivals)
        return min(heads, default=None)

    def lanes(self) -> Iterator[Lane[K]]:
        for band in self._bands.values():
            yield from band.lanes.values()


def _sweep(heap: list[tuple[float, int, Lane[K]]]) -> None:
    heap[:] = [each for each in heap if each[2].ticket == each[1]]
    heapify(heap)
