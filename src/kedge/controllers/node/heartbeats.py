"""What one process has heard of nodes, by its own monotonic clock: the input that no other process can give.

Silence counts only while this process could have heard: a break in its own sight, or a zone that fell silent as a
whole, starts the count anew. It decides nothing. Reconciles ask it through `Context.measured`, so that is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kedge.env import Env

UNDATED = "undated"
"""A word of an agent without a time. It may get one from whoever writes next, and is no new word by that."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What is known of one node's silence."""

    silence_s: float = 0.0
    """Since its lease was last seen to change, or its agent to speak, as far as this process could have seen it."""
    trusted_s: float = 0.0
    """Likewise, and since its zone was last blind: the silence that may be held against the node."""
    heard: bool = False
    """A sign of life was seen, by this very process. The first look at a node is none."""
    blind: str = ""
    """Why silence says nothing of this node now; empty if it does."""


@dataclass(slots=True)
class _LastHeartbeat:
    at_s: float
    renewed: bool
    word: str | None = None
    """What its agent said when it was last looked at; None before the first look."""


@dataclass(slots=True)
class _Zone:
    blind_s: float = -math.inf
    lost_s: float = -math.inf


class Heartbeats:
    """The observer of one process. `note` is fed by the watch of leases, in standbys too."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._heartbeats_seen: dict[str, _LastHeartbeat] = {}
        self._zones: dict[str, _Zone] = {}
        self._proved_s = -math.inf
        """Up to here this process has seen everything there was to see."""
        self._whole_s = math.inf
        """Since then without a break that matters."""
        self._blind = env.metrics.counter("kedge_nodes_blind_total", "Breaks in the sight of nodes", ("what",))
        self._lost = env.metrics.counter("kedge_nodes_lost_total", "Nodes given up for lost")

    def note(self, node: str, age_s: float, *, renewed: bool) -> None:
        """A lease was seen: for the first time, or changed. `age_s` is the age of the cache that showed it."""
        self._prove(age_s)
        before = self._heartbeats_seen.get(node)
        self._heartbeats_seen[node] = _LastHeartbeat(
            self._env.monotonic(), renewed, None if before is None else before.word
        )

    def forget(self, node: str) -> None:
        self._heartbeats_seen.pop(node, None)

    def look(self, node: str, age_s: float, *, word: str = "") -> dict[str, Any]:
        """What is known of one node now, as JSON. One that was never heard of is silent from now on.

        `word` tells one word of its agent from the next, empty if it has none to go by. A new one is a sign of life as
        good as a renewal: nobody is given up who speaks, whatever keeps the lease from being renewed.
        """
        self._prove(age_s)
        heard = self._heartbeats_seen.setdefault(node, _LastHeartbeat(self._env.monotonic(), renewed=False, word=word))
        if word and heard.word not in (None, UNDATED, word):
            heard.at_s, heard.renewed = self._env.monotonic(), True
        heard.word = word
        return {"silence_s": self._since(heard.at_s), "heard": heard.renewed}

    def survey(self, zone: str, members: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Whether the zone is blind, and how long it has not been, as JSON. `members` are the nodes of every zone."""
        limits, now_s = self._env.limits, self._env.monotonic()
        state = self._zones.setdefault(zone, _Zone())
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

    def may_lose(self, zone: str) -> bool:
        """Whether another node of the zone may be given up now. Asking takes the turn."""
        state, now_s = self._zones.setdefault(zone, _Zone()), self._env.monotonic()
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
            # Nodes could not renew either, perhaps: each is given its whole time again.
            self._whole_s = proved_s
        self._proved_s = proved_s

    def _since(self, moment_s: float) -> float:
        return max(0.0, self._proved_s - max(moment_s, self._whole_s))

    def _is_silent(self, node: str) -> bool:
        heard = self._heartbeats_seen.get(node)
        return heard is None or self._since(heard.at_s) >= self._env.limits.node_suspect_s


def blindness(silent: Mapping[str, int], nodes: Mapping[str, int], zone: str, silent_min: int, share: float) -> str:
    """Why the silence in a zone is more likely a fault of what lies between than of its nodes; empty if it is not.

    Pure. As kube-controller-manager has it, with one difference: a zone that is silent to the last node, and is large
    enough to be judged, is blind too, for nothing tells a dead zone from one that is cut off.
    """
    everybody, quiet = sum(nodes.values()), sum(silent.values())
    if everybody and quiet == everybody:
        return "no node at all is heard"
    here, quiet_here = nodes.get(zone, 0), silent.get(zone, 0)
    if quiet_here >= silent_min and quiet_here >= share * here:
        return f"{quiet_here} of {here} nodes of zone {zone or 'none'} are silent at once"
    return ""
