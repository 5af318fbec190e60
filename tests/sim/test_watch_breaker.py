"""Watchers behind an open breaker: they wait for it without backoff, and resume one by one.

Time is virtual: durations depend on the seed, not on the machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP

from kedge.client.contract import Client
from kedge.errors import HeldOff
from kedge.limits import Limits
from kedge.runtime.cache import CacheSet
from kedge.runtime.watch_states import PausingState, StreamingState, Transition, WaitingState, WatchReason, WatchState
from kedge.runtime.watcher import Watcher
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import NO_FAULTS, Simulation, find_target, run

WATCHERS = 20
LIMITS = Limits(watch_probe_s=600.0, watch_silence_s=600.0)
"""Only the watchers send requests: their guards sleep."""


def count_as_failure(self: Watcher, then: Any, error: HeldOff) -> Transition:
    """The former behaviour: a request that the breaker rejects counts as a failure, and the backoff grows."""
    return self._pause(then, WatchReason.UNAVAILABLE, error)


async def resume_at_once(self: Watcher) -> None:
    """All watchers resume at the first moment the breaker may admit."""
    await asyncio.sleep(self._client.breaker.held_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageReport:
    """The watchers of one process during an outage of a minute."""

    failures: int
    """The sum of their failures just before the server is back."""
    sent: int
    """Requests that went out by then."""
    healthy: int
    """How many were healthy by then."""
    refused: int
    """How often the breaker rejected a watch, until all streamed again."""
    came_s: list[float]
    """When each streamed again, since the first did."""


def an_outage() -> OutageReport:
    async def program(sim: Simulation) -> OutageReport:
        cluster = Cluster(sim, servers=1, limits=LIMITS, hostile=True)
        await cluster.set_up()
        host = sim.host("manager")
        env = host.env(limits=LIMITS)
        client = Client(cluster.transport(host, server=0), env, component="manager")
        caches = CacheSet(client, env)
        came_s: dict[str, float] = {}

        async def follow() -> None:
            for n in range(WATCHERS):
                note_streams(caches.cache(CONFIG_MAP, label_selector=f"of={n}"))

        def note_streams(cache: Any) -> None:
            moved = cache.watcher_moved

            def note(state: WatchState, reason: WatchReason) -> None:
                if isinstance(state, StreamingState):
                    came_s[cache.name] = sim.now_s
                moved(state, reason)

            cache.watcher_moved = note

        host.spawn(follow(), name="follow")
        await asyncio.sleep(5)
        assert len(came_s) == WATCHERS
        came_s.clear()
        watchers = [watcher for _, watcher in caches._caches.values()]
        sent = client._attempts.value
        (server,) = cluster.servers
        server.crash()
        await asyncio.sleep(60)
        failures = sum(each.statistics().failures for each in watchers)
        healthy = sum(each.healthy for each in watchers)
        sent = client._attempts.value - sent
        server.restart()
        await asyncio.sleep(120)
        refused = sum(each.statistics().transitions.get("waiting: held", 0) for each in watchers)
        times_s = sorted(came_s.values())
        return OutageReport(
            failures=failures,
            sent=int(sent),
            healthy=healthy,
            refused=refused,
            came_s=[each - times_s[0] for each in times_s],
        )

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
    report: OutageReport = outcome.result
    return report


@pytest.fixture(scope="module")
def report() -> OutageReport:
    return an_outage()


def test_a_watcher_held_off_by_the_breaker_counts_only_sent_requests_and_is_not_healthy(report: OutageReport) -> None:
    assert report.failures == WATCHERS + report.sent  # each lost its stream, and each request that was sent failed
    assert report.healthy == 0
    with replaced(Watcher, "_wait", count_as_failure):
        counting = an_outage()
    assert counting.sent == report.sent  # the breaker limits both
    assert counting.failures > 5 * counting.sent
    assert counting.came_s[-1] > 10 * report.came_s[-1]


def most_at_once(times_s: list[float]) -> int:
    """How many of them are within a tenth of a second, at the worst."""
    return max(sum(0 <= each - first_s < 0.1 for each in times_s) for first_s in times_s)


def test_watchers_of_one_breaker_resume_one_by_one_and_soon(report: OutageReport) -> None:
    assert len(report.came_s) == WATCHERS
    assert report.came_s[-1] <= 2 * LIMITS.breaker_open_s
    assert report.refused < 2 * WATCHERS  # a waiting watcher is rejected by the breaker once
    assert most_at_once(report.came_s) <= WATCHERS // 4
    with replaced(Watcher, "_wait_admitted", resume_at_once):
        assert most_at_once(an_outage().came_s) > WATCHERS // 2


def pauses_of(seed: int) -> Counter[str]:
    """Counts of all watchers in the standard simulation: pauses that grow, those caused by the breaker, and waits."""
    count: Counter[str] = Counter()
    move = Watcher._move

    def counting(self: Watcher, transition: Transition) -> None:
        if isinstance(transition.to, PausingState):
            count["pauses"] += 1
            count["held"] += isinstance(transition.error, HeldOff)
        count["waits"] += isinstance(transition.to, WaitingState)
        move(self, transition)

    with replaced(Watcher, "_move", counting):
        outcome = find_target("kedge.sim.standard:standard").run(seed)
    assert outcome.violation is None, outcome.violation
    return count


def test_no_backoff_of_a_seed_is_caused_by_the_breaker() -> None:
    """Seeds 5000 to 5005 had 2759 pauses, 1413 of them (0 to 449 a seed) because of what the breaker had refused; one
    pause grew to 45 s. Now they have 1525 pauses, all for what a server did, and 599 waits for the breaker."""
    count = pauses_of(5001)
    assert count["held"] == 0
    assert count["waits"] > 0
    with replaced(Watcher, "_wait", count_as_failure):
        assert pauses_of(5001)["held"] > 0
