"""Scores: how good a node is for a shape of pods, 0 to 100 each, in integers throughout.

Allocation looks at one node alone, so a changed row is scored by itself; the others are set in proportion to the
feasible nodes, as kube-scheduler does. Weights come from the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from kedge.placement.resources import CPU, MEMORY
from kedge.scheduler.pipeline.filters.nodes import meets_any, unwelcome
from kedge.scheduler.policy.settings import (
    BALANCED_ALLOCATION,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    NODE_AFFINITY,
    POD_AFFINITY,
    TAINT_TOLERATION,
    TOPOLOGY_SPREAD,
)
from kedge.scheduler.state.columns import ABSENT, EVERY, Bools, Ints, Rows
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.shapes import Spread, Wants
from kedge.scheduler.state.snapshot import SCORED_MAX, NodeRow, Snapshot
from kedge.scheduler.state.tallies import PodTally

POINTS_MAX = 100
_FRACTION = 10_000
"""Parts that a resource is divided into when two resources are compared."""
_LOG_BITS = 10
_DOMAINS_FEW = 16
_KNOWN_MAX = 4096
"""Different fillings of nodes whose score a shape remembers."""
Weights = Mapping[str, int]


# -- allocation ------------------------------------------------------------------------------------


def allocation_parts(snapshot: Snapshot, wants: Wants, rows: Rows = EVERY) -> dict[str, Ints]:
    """Least, most and balanced allocation of CPU and memory on some rows, once the pod is there."""
    offered = snapshot.scored_offered[:, rows]
    divisor = np.maximum(offered, 1)
    resources = np.maximum((offered > 0).sum(0), 1)
    asked = np.asarray([[min(amount, SCORED_MAX)] for amount in wants.scored], np.int64)
    taken = np.minimum(snapshot.scored_claimed[:, rows] + asked, offered)
    most = (taken * POINTS_MAX // divisor).sum(0) // resources
    least = ((offered - taken) * POINTS_MAX // divisor).sum(0) // resources
    balanced = _balanced(wants, offered, snapshot.claimed[:2, rows])
    return {LEAST_ALLOCATED: least, MOST_ALLOCATED: most, BALANCED_ALLOCATION: balanced}


def _balanced(wants: Wants, offered: Ints, claimed: Ints) -> Ints:
    """100 when CPU and memory are used alike, 50 when one is full and the other empty."""
    cpu, memory = wants.requests.get(CPU, 0), wants.requests.get(MEMORY, 0)
    if not cpu and not memory:
        return np.zeros(offered.shape[1], np.int64)  # a pod that asks for nothing would pile up on one node
    asked = np.asarray([[min(cpu, SCORED_MAX)], [min(memory, SCORED_MAX)]], np.int64)
    taken = np.minimum(claimed + asked, offered)
    used = taken * _FRACTION // np.maximum(offered, 1)
    apart = np.abs(used[0] - used[1])
    apart[(offered == 0).any(0)] = 0
    balanced: Ints = (2 * _FRACTION - apart) // (2 * _FRACTION // POINTS_MAX)
    return balanced


class Allocation:
    """What allocation is worth to one shape: on all rows at once, or on one by itself, in plain integers."""

    __slots__ = ("_asked", "_known", "_wants", "_weights")

    def __init__(self, wants: Wants, weights: Weights) -> None:
        self._wants = wants
        self._weights = weights
        self._asked = tuple(
            (min(scored, SCORED_MAX), min(wants.requests.get(resource, 0), SCORED_MAX))
            for scored, resource in zip(wants.scored, (CPU, MEMORY), strict=True)
        )
        self._known: dict[tuple[int, int, int, int, int, int], int] = {}
        """By what a row offers and what is claimed there. Nodes come in few sizes, and pods too."""

    def all(self, snapshot: Snapshot) -> Ints:
        total = np.zeros(snapshot.capacity, np.int64)
        for name, points in allocation_parts(snapshot, self._wants).items():
            if self._weights[name]:
                total += self._weights[name] * points
        return total

    def row(self, node: NodeRow) -> int:
        offered, claimed, scored = node.offered, node.claimed, node.scored
        if offered is None:
            return 0
        known = (
            offered.get(CPU, 0), offered.get(MEMORY, 0),
            scored[0], scored[1], claimed.get(0, 0), claimed.get(1, 0),
        )  # fmt: skip
        found = self._known.get(known)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[known] = self._of(known[:2], known[2:4], known[4:])
        return found

    def _of(self, offered: tuple[int, ...], scored: tuple[int, ...], claimed: tuple[int, ...]) -> int:
        least = most = resources = 0
        used = []
        for has, held, taken, (asks, asks_exactly) in zip(offered, scored, claimed, self._asked, strict=True):
            if has <= 0:
                continue
            has = min(has, SCORED_MAX)
            resources += 1
            full = min(min(held, SCORED_MAX) + asks, has)
            most += full * POINTS_MAX // has
            least += (has - full) * POINTS_MAX // has
            used.append(min(taken + asks_exactly, has) * _FRACTION // has)
        if resources == 2:
            least, most = least // 2, most // 2
        weights, requests = self._weights, self._wants.requests
        total = weights[LEAST_ALLOCATED] * least + weights[MOST_ALLOCATED] * most
        if requests.get(CPU, 0) or requests.get(MEMORY, 0):
            apart = abs(used[0] - used[1]) if resources == 2 else 0
            total += weights[BALANCED_ALLOCATION] * ((2 * _FRACTION - apart) // (2 * _FRACTION // POINTS_MAX))
        return total


# -- scores in proportion to the feasible nodes ----------------------------------------------------


class Preference(Protocol):
    """A score that only the feasible nodes together settle."""

    name: str
    about_pods: bool
    """Whether it changes with claims, and not only with nodes."""

    @property
    def active(self) -> bool:
        """Whether nodes may differ in it at all."""

    @property
    def idle_points(self) -> int:
        """What every node gets when it is not active."""

    def rebuild(self) -> None: ...

    def update(self, rows: list[int]) -> None:
        """Follow changed claims."""

    def points(self, feasible: Bools) -> Ints:
        """0 to 100 for each row that is feasible; anything for the others. The same array while nothing changed."""


class NodePreference:
    """Preferred node affinity: the weights of the terms met, as a share of the most that any node meets."""

    name = NODE_AFFINITY
    about_pods = False
    idle_points = 0

    def __init__(self, snapshot: Snapshot, wants: Wants) -> None:
        self._snapshot = snapshot
        self._wants = wants
        self._met: Ints = np.zeros(0, np.int64)
        self._points: dict[int, Ints] = {}

    @property
    def active(self) -> bool:
        return True

    def rebuild(self) -> None:
        self._met = np.zeros(self._snapshot.capacity, np.int64)
        self._points = {}
        for term, weight in self._wants.preferred:
            self._met += weight * meets_any(self._snapshot, (term,), slice(None))

    def update(self, rows: list[int]) -> None: ...

    def points(self, feasible: Bools) -> Ints:
        most = int((self._met * feasible).max(initial=0))
        if most not in self._points:
            self._points = {most: self._met * POINTS_MAX // most if most else self._met}
        return self._points[most]


class TaintPreference:
    """Taints that only ask to stay away: the fewer a pod does not tolerate, the better."""

    name = TAINT_TOLERATION
    about_pods = False
    idle_points = POINTS_MAX

    def __init__(self, snapshot: Snapshot, wants: Wants) -> None:
        self._snapshot = snapshot
        self._wants = wants
        self._unwelcome: Ints = np.zeros(0, np.int64)
        self._any = False
        self._points: dict[int, Ints] = {}

    @property
    def active(self) -> bool:
        return self._any

    def rebuild(self) -> None:
        self._unwelcome = unwelcome(self._snapshot, self._wants.tolerations).astype(np.int64)
        self._any = bool(self._unwelcome.any())
        self._points = {}

    def update(self, rows: list[int]) -> None: ...

    def points(self, feasible: Bools) -> Ints:
        most = int((self._unwelcome * feasible).max(initial=0))
        if most not in self._points:
            self._points = {most: POINTS_MAX - self._unwelcome * POINTS_MAX // max(most, 1)}
        return self._points[most]


class PodPreference:
    """Preferred affinity between pods, both ways: from the weakest pull on a feasible node to the strongest."""

    name = POD_AFFINITY
    about_pods = True
    idle_points = 0

    def __init__(self, snapshot: Snapshot, tallies: Mapping[str, PodTally]) -> None:
        self._parts = [DomainCounts(snapshot, key, tally) for key, tally in tallies.items()]
        self._pull: Ints = np.zeros(0, np.int64)
        self._stale = True
        """Pods came or went since the points were given."""
        self._points: dict[tuple[int, int], Ints] = {}
        self._level: Ints = np.zeros(0, np.int64)

    @property
    def tallies(self) -> list[PodTally]:
        return [part.tally for part in self._parts]

    @property
    def active(self) -> bool:
        return any(part.tally.weighing for part in self._parts)

    def rebuild(self) -> None:
        for part in self._parts:
            part.rebuild()
        self._stale = True

    def update(self, rows: list[int]) -> None:
        for part in self._parts:
            if part.update(rows) != []:
                self._stale = True

    def points(self, feasible: Bools) -> Ints:
        if len(self._parts) == 1 and self._parts[0].domains <= _DOMAINS_FEW:
            return self._points_by_domain(self._parts[0], feasible)
        if self._stale:
            first, *others = self._parts
            self._pull = first.counts[first.ids]
            for part in others:
                self._pull += part.counts[part.ids]
            self._points, self._stale = {}, False
        pull = self._pull
        among = pull[feasible]
        low, high = (int(among.min()), int(among.max())) if len(among) else (0, 0)
        if low == high:
            return self._all_alike(len(feasible))
        if (low, high) not in self._points:
            self._points = {(low, high): (pull - low) * POINTS_MAX // (high - low)}
        return self._points[low, high]

    def _points_by_domain(self, part: DomainCounts, feasible: Bools) -> Ints:
        """The same where nodes differ by a few domains alone: the arithmetic is on those, not on all rows."""
        counts = part.counts.tolist()
        by_pull = sorted(range(len(counts)), key=counts.__getitem__)

        def has_feasible(domain: int) -> bool:
            return bool(part.sizes[domain]) and bool((feasible & (part.ids == domain)).any())

        weakest = next(filter(has_feasible, by_pull), None)
        if weakest is None:
            return self._all_alike(len(feasible))
        strongest = next(filter(has_feasible, reversed(by_pull)))
        low, high = counts[weakest], counts[strongest]
        if low == high:
            return self._all_alike(len(feasible))
        if self._stale or (low, high) not in self._points:
            by_domain = (part.counts - low) * POINTS_MAX // (high - low)
            self._points, self._stale = {(low, high): by_domain[part.ids]}, False
        return self._points[low, high]

    def _all_alike(self, rows: int) -> Ints:
        if len(self._level) != rows:
            self._level = np.zeros(rows, np.int64)
        return self._level


class SpreadPreference:
    """Spread constraints that may be broken: the fewer pods of the kind in a node's domains, the better.

    A constraint's counts weigh more the more domains it has, so that a zone is not drowned by its hosts.
    """

    name = TOPOLOGY_SPREAD
    about_pods = True
    idle_points = 0

    def __init__(
        self,
        snapshot: Snapshot,
        constraints: tuple[Spread, ...],
        tallies: list[PodTally],
        admitted: Callable[[Spread], Bools],
    ) -> None:
        self._snapshot = snapshot
        self._admitted = admitted
        """The nodes that a constraint's inclusion policies let count."""
        self._constraints = constraints
        self._parts = [
            DomainCounts(snapshot, constraint.topology_key, tally)
            for constraint, tally in zip(constraints, tallies, strict=True)
        ]
        self._keyed: Bools = np.zeros(0, np.bool_)

    @property
    def tallies(self) -> list[PodTally]:
        return [part.tally for part in self._parts]

    @property
    def active(self) -> bool:
        return True

    def rebuild(self) -> None:
        self._keyed = self._snapshot.exists.copy()
        for part in self._parts:
            self._keyed &= part.ids != ABSENT
        for constraint, part in zip(self._constraints, self._parts, strict=True):
            part.rebuild(self._admitted(constraint) & self._keyed)

    def update(self, rows: list[int]) -> None:
        for part in self._parts:
            part.update(rows)

    def points(self, feasible: Bools) -> Ints:
        scored = feasible & self._keyed
        if not scored.any():
            return np.zeros(len(feasible), np.int64)
        crowd = np.zeros(len(feasible), np.int64)
        for constraint, part in zip(self._constraints, self._parts, strict=True):
            domains = int(np.count_nonzero(np.bincount(part.ids[scored], minlength=part.domains)))
            by_domain = part.counts * _log(domains + 2) + ((constraint.skew_max - 1) << _LOG_BITS)
            crowd += by_domain[part.ids]
        crowd = (crowd + (1 << (_LOG_BITS - 1))) >> _LOG_BITS
        among = crowd[scored]
        low, high = int(among.min()), int(among.max())
        if not high:
            points = np.full(len(feasible), POINTS_MAX, np.int64)
        else:
            points = (high + low - crowd) * POINTS_MAX // high
        points[~scored] = 0
        return points


def _log(number: int) -> int:
    """The natural logarithm in 1024ths, by integer arithmetic alone: the same on every machine."""
    whole = number.bit_length() - 1
    mantissa = (number << 32) >> whole  # 1 to 2, in 32 bits after the point
    binary = whole
    for _ in range(2 * _LOG_BITS):
        mantissa = mantissa * mantissa >> 32
        binary <<= 1
        if mantissa >= 2 << 32:
            mantissa >>= 1
            binary |= 1
    return binary * 744_261_118 >> 30 + _LOG_BITS
