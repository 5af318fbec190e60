"""How long nodes have been silent, now and lately, from the commits of their leases."""

from __future__ import annotations


class NodeSilences:
    """The longest recent time without a renewal, by node. A controller may act on one that has just ended."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._longest: dict[str, tuple[float, float]] = {}
        """By node: the end and the length of the longest silence, of those that ended lately."""

    def renewed(self, node: str, before_s: float, now_s: float) -> None:
        """The lease was renewed now, and before that at `before_s`."""
        ended_s, longest_s = self._longest.get(node, (0.0, 0.0))
        if now_s - before_s >= longest_s or now_s - ended_s > self._lag_s:
            self._longest[node] = now_s, now_s - before_s

    def longest_s(self, node: str, renewed_s: float, now_s: float) -> float:
        ended_s, longest_s = self._longest.get(node, (0.0, 0.0))
        return max(now_s - renewed_s, longest_s) if now_s - ended_s < self._lag_s else now_s - renewed_s
