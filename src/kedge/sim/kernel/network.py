"""Links between hosts: latency, loss, duplication, reordering, partitions in one or both directions.

A `Link` describes one direction; `Network.transmit` carries one message over it. `calls`, `messages`, `streams` and
`connections` are built on that. Messages are Python objects passed by reference: keep them frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from kedge.errors import check
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.strands import STRAND, HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

QUANTILES = 16
"""Values that a latency may have: a choice on the tape is bounded, and 0 is the least latency."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of one-way delays, as its quantiles in ascending order."""

    quantiles_s: tuple[float, ...]

    @classmethod
    def fixed(cls, delay_s: float) -> Latency:
        return cls((delay_s,))

    @classmethod
    def uniform(cls, low_s: float, high_s: float) -> Latency:
        check(0 <= low_s <= high_s, "a latency goes from low to high and is never negative")
        step_s = (high_s - low_s) / (QUANTILES - 1)
        return cls(tuple(low_s + step_s * i for i in range(QUANTILES)))

    @classmethod
    def long_tail(cls, median_s: float, p99_s: float) -> Latency:
        """Log-normal: most messages near the median, a few far out."""
        check(0 < median_s <= p99_s, "the 99th percentile is not below the median")
        tail = NormalDist().inv_cdf(0.99)
        ratio = p99_s / median_s
        points = [NormalDist().inv_cdf((i + 0.5) / QUANTILES) / tail for i in range(QUANTILES)]
        return cls(tuple(median_s * ratio**z for z in points))


LAN = Latency.uniform(0.0005, 0.0080)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How messages travel in one direction between two hosts."""

    latency: Latency = LAN
    loss: float = 0.0
    """Share of messages that are lost. On an ordered connection a lost piece arrives late instead."""
    duplication: float = 0.0
    """Share of messages that arrive twice."""
    ordered: bool = False
    """Whether messages may not overtake each other."""
    bytes_per_s: float = 0.0
    """Bandwidth of an ordered connection; 0 is unlimited."""


STALL_S_MAX = 20.0
"""How long a partition may stall a connection before it breaks."""

RETRANSMIT_S = 0.2
"""Delay of a lost piece on a connection."""

LOOPBACK = Link(latency=Latency.fixed(0.0), ordered=True)


class Network:
    """Every link of one run."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.default = Link()
        self.call_timeout_s = 5.0
        """How long a caller waits before the outcome of a call is unknown."""
        self.carry: Callable[[Any], Any] | None = None
        """Applied to arguments and results of calls. Set it to a copy to catch hosts that share mutable state."""
        self._links: dict[tuple[str, str], Link] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._labels: dict[tuple[str, str], str] = {}
        """Labels of the latency choices by direction, cached because every message needs one."""
        self.on_change: list[Callable[[], None]] = []
        """Called when a partition begins or ends."""

    # -- shape

    def set_link(self, source: Host, target: Host, *, both_ways: bool = True, **changes: Any) -> None:
        """Change fields of the `Link` from `source` to `target`, and with `both_ways` of the link back."""
        self._links[source.name, target.name] = replace(self.link(source.name, target.name), **changes)
        if both_ways:
            self._links[target.name, source.name] = replace(self.link(target.name, source.name), **changes)

    def link(self, source: str, target: str) -> Link:
        if source == target:
            return LOOPBACK
        return self._links.get((source, target), self.default)

    def partition(self, sources: Iterable[Host], targets: Iterable[Host], *, both_ways: bool = True) -> Partition:
        """Cut every link from `sources` to `targets`, until `heal` of the returned partition or of the network."""
        pairs = {(a.name, b.name) for a in sources for b in targets if a is not b}
        if both_ways:
            pairs |= {(b, a) for a, b in pairs}
        partition = Partition(self, tuple(sorted(pairs)))
        for pair in partition.pairs:
            self._cut[pair] = self._cut.get(pair, 0) + 1
        self._changed("partition", partition)
        return partition

    def heal(self) -> None:
        """End every partition, and remove loss and duplication from every link."""
        self._cut.clear()
        for pair, link in self._links.items():
            self._links[pair] = replace(link, loss=0.0, duplication=0.0)
        self.default = replace(self.default, loss=0.0, duplication=0.0)
        self._world.note("network", "healed")
        for notify in self.on_change:
            notify()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def end_partition(self, partition: Partition) -> None:
        """End one partition; links that another one cuts stay cut."""
        for pair in partition.pairs:
            left = self._cut.get(pair, 0) - 1
            if left > 0:
                self._cut[pair] = left
            else:
                self._cut.pop(pair, None)
        self._changed("mended", partition)

    def _changed(self, kind: str, partition: Partition) -> None:
        self._world.note(kind, " ".join(f"{a}>{b}" for a, b in partition.pairs))
        for notify in self.on_change:
            notify()

    # -- carrying

    def latency_s(self, source: str, target: str) -> float:
        """Draw how long one message takes."""
        quantiles_s = self.link(source, target).latency.quantiles_s
        return quantiles_s[self._world.choices.network.choose(self._label((source, target)), len(quantiles_s))]

    def _label(self, way: tuple[str, str]) -> str:
        label = self._labels.get(way)
        if label is None:
            label = self._labels[way] = f"latency {way[0]}>{way[1]}"
        return label

    def loss_detection_s(self, source: str, target: str) -> float:
        """How long until `target` detects that its connection to `source` is lost."""
        return STALL_S_MAX if self.is_cut(source, target) else self.latency_s(source, target)

    def transmit(
        self,
        source: Host,
        target: Host,
        arrive: Callable[[HostProcess], object],
        *,
        what: str,
        extra_s: float = 0.0,
        resent: bool = False,
    ) -> None:
        """Carry one message: call `arrive` with the current process of `target`, once, twice or never.

        `arrive` runs as the world, not as a host; it starts work on the process it is given. With `resent` a lost
        message arrives late, unless the link is cut.
        """
        world = self._world
        loop = world.loop
        sender = STRAND.get(loop.root).process
        a, b = source.name, target.name
        if sender.host_name == a and (not source.up or sender is not source.process):
            return  # sent by the rest of a step after its host crashed
        way = (a, b)
        link = LOOPBACK if source is target else self._links.get(way, self.default)
        lost = link.loss > 0 and world.choices.network.chance(f"loss {a}>{b}", link.loss)
        if way in self._cut or (lost and not resent):
            world.note("lost", f"{what} {a}>{b}")
            return
        if lost:
            extra_s += RETRANSMIT_S
        if world.lineage is not None:
            arrive = world.lineage.carried(a, b, arrive)
        copies = 1
        if link.duplication > 0 and not resent and world.choices.network.chance(f"duplicate {a}>{b}", link.duplication):
            copies = 2
        while copies:
            copies -= 1
            if world.deliveries is not None:
                channel = way if link.ordered else None
                world.deliveries.put(way, channel, self._arrived, source, target, arrive, what)
                continue
            quantiles_s = link.latency.quantiles_s
            bound = len(quantiles_s)
            label = self._labels.get(way) or self._label(way)
            place = world.choices.network.choose(label, bound) if bound > 1 else 0
            due_s = loop.now + quantiles_s[place] + extra_s
            if link.ordered:
                due_s = max(due_s, self._last_arrival.get(way, 0.0))
                self._last_arrival[way] = due_s
            loop.call_at_moment(due_s, self._arrived, source, target, arrive, what)

    def _arrived(self, source: Host, target: Host, arrive: Callable[[HostProcess], object], what: str) -> None:
        if self._cut and (source.name, target.name) in self._cut:
            self._world.note("lost", f"{what} {source.name}>{target.name}")
            return
        arrive(target.process)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Links that are cut together. Also a context manager, plain and async."""

    network: Network
    pairs: tuple[tuple[str, str], ...]

    def heal(self) -> None:
        self.network.end_partition(self)

    def __enter__(self) -> Partition:
        return self

    def __exit__(self, *exc: object) -> None:
        self.heal()

    async def __aenter__(self) -> Partition:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.heal()
