"""The bound on requests to unreachable hosts. The simulator counts every request, of every sender.

`invariants.Judge` uses this. A client that keeps retrying is right; one that retries without its breaker turns an
outage into a request storm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.limits import Limits
from kedge.sim.cluster import Cluster
from kedge.sim.kernel.strands import HostProcess
from kedge.sim.kernel.trace import Event

_DOUBLINGS = 5
"""Probes until an open breaker waits for its longest pause."""
_LONGEST_HOLD = 16 * 0.5
"""That pause in `breaker_open_s`, at its shortest."""


def requests_max(limits: Limits, outage_s: float) -> float:
    """The most requests of one client into an outage: those in flight, those that open the breaker, and its probes."""
    burst = limits.client_in_flight_max + limits.breaker_failures_max + _DOUBLINGS
    return burst + 1.1 * outage_s / (limits.breaker_open_s * _LONGEST_HOLD)


class Outages:
    """Undelivered requests by sender and receiver, since one was last delivered."""

    def __init__(self, cluster: Cluster, limits: Limits, found: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._limits = limits
        self._found = found
        self._sent: dict[str, tuple[float, int]] = {}
        """By `caller>callee`: since when, and how many."""
        cluster.sim.world.listeners.append(self._observe)
        cluster.sim.world.on_crash.append(self._forget)

    def _observe(self, event: Event) -> None:
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
            # A server sends to the store on behalf of its clients. Requests that need no store are answered, which
            # closes the breakers of the clients: only the bound on requests in flight is left.
            others = len(self._cluster.sim.world.hosts) - len(servers)
            rate = self._limits.client_in_flight_max / self._cluster.sim.network.call_timeout_s
            most += others * (requests_max(self._limits, 0.0) + rate * outage_s)
        elif caller not in self._components():
            return  # users may retry without a bound
        if count > most:
            yield callee, f"{caller} sent {count} requests to {callee} within {outage_s:.1f}s, and none was delivered"

    def _components(self) -> set[str]:
        return {*self._cluster.nodes, *(each.host.name for each in self._cluster.processes)}

    def _forget(self, process: HostProcess) -> None:
        """A process that restarts begins at zero: it knows of no outage."""
        mine = f"{process.host_name}>"
        for way in [each for each in self._sent if each.startswith(mine)]:
            del self._sent[way]
