"""What is sent to those who cannot be reached: the simulator knows it of every request, whoever sent it.

`invariants.Judge` listens with this. A client that keeps trying is right; one that tries as if nothing had happened
makes a storm of an outage, and must fall behind its breaker instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.limits import Limits
from kedge.sim.cluster import Cluster
from kedge.sim.kernel.strands import HostProcess
from kedge.sim.kernel.trace import Event

_DOUBLINGS = 5
"""Probes until an open breaker holds off for as long as it ever does."""
_LONGEST_HOLD = 16 * 0.5
"""That, in `breaker_open_s`, at its least."""


def requests_max(limits: Limits, outage_s: float) -> float:
    """The most that one client may send into an outage: what was under way, what opens the breaker, and its probes."""
    burst = limits.client_in_flight_max + limits.breaker_failures_max + _DOUBLINGS
    return burst + 1.1 * outage_s / (limits.breaker_open_s * _LONGEST_HOLD)


class Outages:
    """Requests that could not be delivered, by who sent them to whom, since one last was."""

    def __init__(self, cluster: Cluster, limits: Limits, found: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._limits = limits
        self._found = found
        self._sent: dict[str, tuple[float, int]] = {}
        """By `caller>callee`: since when, and how many."""
        cluster.sim.world.listeners.append(self._hear)
        cluster.sim.world.on_death.append(self._forget)

    def _hear(self, event: Event) -> None:
        if event.kind == "call":
            if self._sent:
                self._sent.pop(event.text.rpartition(" ")[2], None)
        elif event.kind == "refused" or (event.kind == "lost" and event.text.startswith("request of ")):
            way = event.text.rpartition(" ")[2]
            since_s, count = self._sent.get(way, (event.at_s, 0))
            self._sent[way] = since_s, count + 1
            for cause, message in self._judge(way, event.at_s - since_s, count + 1):
                self._found(cause, message)

    def _judge(self, way: str, outage_s: float, count: int) -> Iterator[tuple[str, str]]:
        most = requests_max(self._limits, outage_s)
        if count <= most:
            return
        caller, _, callee = way.partition(">")
        servers = {each.name for each in self._cluster.servers}
        if caller in servers:
            # It asks on behalf of everybody else. What needs no store is still answered, which closes their breakers:
            # only the bound on requests in flight is left.
            others = len(self._cluster.sim.world.hosts) - len(servers)
            rate = self._limits.client_in_flight_max / self._cluster.sim.network.call_timeout_s
            most += others * (requests_max(self._limits, 0.0) + rate * outage_s)
        elif caller not in self._components():
            return  # people may be impatient
        if count > most:
            yield callee, f"{caller} sent {count} requests to {callee} within {outage_s:.1f}s, and none could arrive"

    def _components(self) -> set[str]:
        return {*self._cluster.nodes, *(each.host.name for each in self._cluster.processes)}

    def _forget(self, process: HostProcess) -> None:
        """Whoever restarts begins anew: it knows of no outage."""
        mine = f"{process.host_name}>"
        for way in [each for each in self._sent if each.startswith(mine)]:
            del self._sent[way]
