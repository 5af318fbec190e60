"""The heartbeats of nodes as one process has seen them, by its own monotonic clock.

Silence counts only while this process could see renewals: a gap in its own watch, or a zone that falls silent as a
whole, restarts the count. It decides nothing. Reconciles read it through `Context.measured`, so that the value is
recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kedge.env import Env

UNDATED = "undated"
"""An agent's report without a time. The next writer may add a time; that alone is not a new report."""

_NODES_MIN = 64
"""Nodes below which none is looked for that is gone."""
_ZONES_MAX = 1_000
"""Zones that are followed: a zone is a label of nodes, and labels change. Then the one that was quiet longest goes."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The evidence about one node: how long it has been silent, and whether that counts."""

    silence_s: float = 0.0
    """Seconds since its lease or its agent's report was last seen to change, while this process could see it."""
    trusted_s: float = 0.0
    """The part of `silence_s` since its zone was last blind: only this counts against the node."""
    alive: bool = False
    """This process has seen a heartbeat. The first read of a lease is not one."""
    blind: str = ""
    """Why silence does not count against this node now; empty if it counts."""


@dataclass(slots=True)
class _LastHeartbeat:
    at_s: float
    renewed: bool
    report: str | None = None
    """Its agent's report when last observed; None before that."""


@dataclass(slots=True)
class _Zone:
    blind_s: float = -math.inf
    lost_s: float = -math.inf


class Heartbeats:
    """The heartbeats that one process has seen. The watch of leases calls `note`, in standbys too."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._nodes: dict[str, _LastHeartbeat] = {}
        self._nodes_most = _NODES_MIN
        """Twice the nodes that existed when those that were gone were last dropped."""
        self._zones: dict[str, _Zone] = {}
        self._proved_s = -math.inf
        """Up to here this process has seen every change of leases."""
        self._whole_s = math.inf
        """Since then there was no gap longer than `node_blind_s`."""
        self._blind = env.metrics.counter(
            "kedge_nodes_blind_total", "Gaps in the watch of leases, and zones that fell silent", ("what",)
        )
        self._lost = env.metrics.counter("kedge_nodes_lost_total", "Nodes declared lost")

    def note(self, node: str, age_s: float, *, renewed: bool) -> None:
        """A lease was read for the first time, or it has changed. `age_s` is the age of its cache."""
        self._prove(age_s)
        before = self._nodes.get(node)
        self._nodes[node] = _LastHeartbeat(self._env.monotonic(), renewed, None if before is None else before.report)

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    @property
    def crowded(self) -> bool:
        """Whether there are so many that some may be of nodes that are gone."""
        return len(self._nodes) > self._nodes_most

    def forget_all_but(self, exists: Callable[[str], bool]) -> None:
        for gone in [each for each in self._nodes if not exists(each)]:
            del self._nodes[gone]
        self._nodes_most = max(_NODES_MIN, 2 * len(self._nodes))

    def observe(self, node: str, age_s: float, *, report: str = "") -> dict[str, Any]:
        """The silence of one node now, as JSON. A node without a heartbeat is silent from now on.

        `report` identifies the last report of its agent; empty if there is none. A new report counts as a renewal: a
        node whose agent writes is not lost, whatever keeps its lease from being renewed.
        """
        self._prove(age_s)
        last = self._nodes.setdefault(node, _LastHeartbeat(self._env.monotonic(), renewed=False, report=report))
        if report and last.report not in (None, UNDATED, report):
            last.at_s, last.renewed = self._env.monotonic(), True
        last.report = report
        return {"silence_s": self._since(last.at_s), "alive": last.renewed}

    def survey(self, zone: str, members: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Whether the zone is blind, and for how long it has not been, as JSON. `members` are the nodes by zone."""
        limits, now_s = self._env.limits, self._env.monotonic()
        state = self._zone(zone)
        silent = {each: sum(map(self._is_silent, nodes)) for each, nodes in members.items()}
        blind = blindness(
            silent, {each: len(nodes) for each, nodes in members.items()}, zone, limits.zone_blind_min,
            limits.zone_blind_share,
        )  # fmt: skip
        if blind:
            if now_s - state.blind_s > limits.node_blind_s:
                self._blind.labels("zone").inc()
            state.blind_s = now_s
        return {"blind": blind, "clear_s": min(1e9, now_s - state.blind_s)}

    def _zone(self, name: str) -> _Zone:
        found = self._zones.get(name)
        if found is None:
            if len(self._zones) >= _ZONES_MAX:
                oldest = min(self._zones, key=lambda each: max(self._zones[each].blind_s, self._zones[each].lost_s))
                del self._zones[oldest]
            found = self._zones[name] = _Zone()
        return found

    def may_lose(self, zone: str) -> bool:
        """Whether another node of the zone may be declared lost now. A true result uses the rate limit up."""
        state, now_s = self._zone(zone), self._env.monotonic()
        if now_s - state.lost_s < self._env.limits.node_loss_every_s:
            return False
        state.lost_s = now_s
        self._lost.inc()
        return True

    def _prove(self, age_s: float) -> None:
        proved_s = self._env.monotonic() - age_s
        if proved_s <= self._proved_s:
            return
        if proved_s - self._proved_s > self._env.limits.node_blind_s:
            if self._proved_s > -math.inf:
                self._blind.labels("observer").inc()
            # Nodes may have been unable to renew too: each gets its whole time again.
            self._whole_s = proved_s
        self._proved_s = proved_s

    def _since(self, moment_s: float) -> float:
        return max(0.0, self._proved_s - max(moment_s, self._whole_s))

    def _is_silent(self, node: str) -> bool:
        last = self._nodes.get(node)
        return last is None or self._since(last.at_s) >= self._env.limits.node_suspect_s


def blindness(silent: Mapping[str, int], nodes: Mapping[str, int], zone: str, silent_min: int, share: float) -> str:
    """Why the silence in a zone is more likely a network fault than a fault of its nodes; empty if it is not.

    Pure. As in kube-controller-manager, with one difference: a zone of which every node is silent, and that is large
    enough, is blind too, because a dead zone and a partitioned one look the same.
    """
    total, quiet = sum(nodes.values()), sum(silent.values())
    if total and quiet == total:
        return "all nodes are silent"
    here, quiet_here = nodes.get(zone, 0), silent.get(zone, 0)
    if quiet_here >= silent_min and quiet_here >= share * here:
        return f"{quiet_here} of {here} nodes of zone {zone or 'none'} are silent at once"
    return ""
