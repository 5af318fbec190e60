"""Usage of pods as rates, from two samples of their processes."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from kedge.agent.core.driver import Consumption, ContainerProcess, Identity
from kedge.agent.core.usage import PodRates, Sample, rates_of


def process(
    pod_uid: str = "u1", container: str = "main", *, attempt: int = 0, running: bool = True
) -> ContainerProcess:
    return ContainerProcess(
        identity=Identity(pod_uid, container, attempt, 0, "n1"),
        namespace="default",
        pod=pod_uid,
        running=running,
        started_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


def sample(at_s: float, **cpu_s: float) -> Sample:
    """By container of pod u1."""
    return Sample(at_s, {process(container=name).identity: Consumption(used) for name, used in cpu_s.items()})


def reported(rates: PodRates) -> dict[str, dict[str, dict[str, str]]]:
    return {
        uid: {name: {each: str(amount) for each, amount in used.items()} for name, used in containers.items()}
        for uid, containers in rates.items()
    }


def test_a_rate_is_the_difference_of_two_samples() -> None:
    rates = rates_of([process()], sample(100, main=7.0), sample(110, main=9.5))
    assert reported(rates) == {"u1": {"main": {"cpu": "250m"}}}


def test_memory_is_that_of_the_last_sample() -> None:
    one = process()
    before, after = (
        Sample(at_s, {one.identity: Consumption(0.0, held)}) for at_s, held in ((0, 5 << 20), (10, 1 << 20))
    )
    assert reported(rates_of([one], before, after)) == {"u1": {"main": {"cpu": "0", "memory": "1048576"}}}


def test_a_pod_with_a_process_in_one_sample_only_is_left_out() -> None:
    both = [process(), process(container="side")]
    assert rates_of(both, sample(0, main=0.0), sample(10, main=5.0, side=1.0)) == {}
    assert rates_of(both, sample(0, main=0.0, side=0.0), sample(10, main=5.0)) == {}
    found = rates_of(both, sample(0, main=0.0, side=0.0), sample(10, main=5.0, side=1.0))
    assert reported(found) == {"u1": {"main": {"cpu": "500m"}, "side": {"cpu": "100m"}}}


def test_a_restarted_container_is_another_process() -> None:
    before, again = process(), process(attempt=1)
    first = Sample(0, {before.identity: Consumption(500.0)})
    second = Sample(10, {again.identity: Consumption(1.0)})
    assert rates_of([process(running=False), again], first, second) == {}


def test_ended_processes_use_nothing_and_hide_no_pod() -> None:
    ended = process(container="init", running=False)
    assert reported(rates_of([ended, process()], sample(0, main=0.0), sample(10, main=1.0))) == {
        "u1": {"main": {"cpu": "100m"}}
    }


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e5), st.floats(-10, 1e4), st.booleans())
@example(first=0.0, last=1.0, at_s=0.0, window_s=1e-308, running=True)
def test_no_rate_is_negative(first: float, last: float, at_s: float, window_s: float, running: bool) -> None:
    rates = rates_of([process(running=running)], sample(at_s, main=first), sample(at_s + window_s, main=last))
    for containers in rates.values():
        assert containers["main"]["cpu"].nano >= 0
