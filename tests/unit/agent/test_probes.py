"""Probes: the order in which they run, and how many equal results in a row change a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.kit.agent import AgentHarness, with_agent

from kedge.agent.core.driver import Identity
from kedge.agent.core.plan import HEALTHY, Health
from kedge.agent.core.probes import Prober, has_probes
from kedge.api.views import Container, Probe
from kedge.errors import Unavailable

IDENTITY = Identity("u1", "main", 0, 1, "n1")


def probe(**values: Any) -> Probe:
    return Probe(
        **{"period_seconds": 10, "failure_threshold": 3, "success_threshold": 1, "timeout_seconds": 1, **values}
    )


class Probed:
    """A prober whose driver gives scripted results, and every health that it reported."""

    def __init__(self, harness: AgentHarness, results: Iterable[bool | Exception] = (), **probes: Any) -> None:
        self.harness = harness
        self.healths: list[Health] = []
        self.asked: list[Probe] = []
        self._results = iter(results)
        harness.driver.probe_passes = self._next
        container = Container(name="main", **probes)
        self.prober = Prober(harness.driver, harness.env, IDENTITY, container, self._changed)

    def _next(self, asked: Probe) -> bool:
        self.asked.append(asked)
        result = next(self._results, True)
        if isinstance(result, Exception):
            raise result
        return result

    def _changed(self) -> None:
        self.healths.append(self.prober.health)


def test_a_container_without_probes_needs_no_prober() -> None:
    assert not has_probes(Container(name="main"))
    assert has_probes(Container(name="main", liveness_probe=probe()))


@with_agent()
async def test_liveness_fails_after_as_many_failures_in_a_row_as_its_threshold(harness: AgentHarness) -> None:
    probed = Probed(harness, [False, False, True, False, False, False], liveness_probe=probe())
    await asyncio.sleep(45)
    assert probed.healths == [], "a success in between resets the count"
    await asyncio.sleep(10)
    assert probed.healths == [Health(sick="Liveness probe failed: no answer")]


@with_agent()
async def test_readiness_begins_false_and_needs_its_success_threshold(harness: AgentHarness) -> None:
    probed = Probed(harness, [True, True, False], readiness_probe=probe(success_threshold=2, failure_threshold=1))
    assert not probed.prober.health.ready
    await asyncio.sleep(5)
    assert not probed.prober.health.ready
    await asyncio.sleep(10)
    assert probed.prober.health.ready
    await asyncio.sleep(10)
    assert not probed.prober.health.ready
    assert len(probed.healths) == 2, "only changes are reported"


@with_agent()
async def test_other_probes_wait_until_the_startup_probe_has_passed(harness: AgentHarness) -> None:
    startup, liveness = probe(period_seconds=5), probe(period_seconds=7)
    probed = Probed(harness, [False, False, True], startup_probe=startup, liveness_probe=liveness)
    assert not probed.prober.health.started
    await asyncio.sleep(8)
    assert probed.asked == [startup, startup]
    await asyncio.sleep(10)
    assert probed.healths == [Health(started=True)]
    assert probed.asked[:3] == [startup] * 3
    assert probed.asked[3:] == [liveness, liveness]


@with_agent()
async def test_a_process_that_does_not_start_in_time_is_not_alive(harness: AgentHarness) -> None:
    probed = Probed(harness, [False] * 10, startup_probe=probe(), readiness_probe=probe())
    await asyncio.sleep(60)
    assert probed.healths == [Health(started=False, ready=False, sick="Startup probe failed: no answer")]
    assert len(probed.asked) == 3, "it is probed no more"


@with_agent()
async def test_a_probe_without_an_answer_in_time_has_failed(harness: AgentHarness) -> None:
    harness.driver.probe_s = 3.0
    probed = Probed(harness, liveness_probe=probe(failure_threshold=1, timeout_seconds=2))
    await asyncio.sleep(2.5)
    assert probed.healths == [Health(sick="Liveness probe failed: no answer within 2 s")]


@with_agent()
async def test_a_driver_that_fails_counts_as_a_failed_probe(harness: AgentHarness) -> None:
    probed = Probed(harness, [Unavailable("no driver")], liveness_probe=probe(failure_threshold=1))
    await asyncio.sleep(1)
    assert probed.healths == [Health(sick="Liveness probe failed: no driver")]
    await asyncio.sleep(10)
    assert probed.healths[-1] == HEALTHY


@with_agent()
async def test_the_initial_delay_is_waited_for(harness: AgentHarness) -> None:
    probed = Probed(harness, liveness_probe=probe(initial_delay_seconds=20))
    await asyncio.sleep(15)
    assert probed.asked == []
    await asyncio.sleep(10)
    assert len(probed.asked) == 1


@with_agent()
async def test_a_stopped_prober_probes_no_more(harness: AgentHarness) -> None:
    probed = Probed(harness, [False] * 9, liveness_probe=probe())
    await asyncio.sleep(15)
    probed.prober.stop()
    asked = len(probed.asked)
    await asyncio.sleep(60)
    assert (len(probed.asked), probed.healths) == (asked, [])


@with_agent()
async def test_the_latest_failure_of_a_readiness_probe_is_kept_once_a_threshold(harness: AgentHarness) -> None:
    probed = Probed(harness, [False] * 9 + [True] * 9, readiness_probe=probe())
    await asyncio.sleep(25)
    assert probed.healths == [Health(ready=False, unready="Readiness probe failed: no answer")]
    harness.driver.probe_output = "statuscode: 500"
    await asyncio.sleep(20)
    assert len(probed.healths) == 1, "at most one report in each threshold of failures"
    await asyncio.sleep(10)
    assert probed.healths[1:] == [Health(ready=False, unready="Readiness probe failed: statuscode: 500")]
    await asyncio.sleep(40)
    assert probed.healths[2:] == [HEALTHY]
