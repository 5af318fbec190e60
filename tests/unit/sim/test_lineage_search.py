"""A lineage search loses what an outcome rests on: it finds the one loss that matters, or shows that none does."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.errors import OutcomeUnknown
from kedge.sim.examples.lost_reply import careful, careless
from kedge.sim.kernel import Simulation, SimulationTarget
from kedge.sim.kernel.lineage import PROGRAM_ENDS, Message
from kedge.sim.kernel.lineage_search import hitting_sets, search_lineage

MESSAGES = [Message(name, 1) for name in "abcdef"]


class Log:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.entries: list[str] = []

    def add(self, entry: str) -> None:
        if entry not in self.entries:
            self.entries.append(entry)
        self._sim.commit(entry)


def writers(names: tuple[str, ...], *, retries: bool) -> Any:
    """Each host adds the same entry to a log. The outcome: it is there."""

    async def program(sim: Simulation) -> None:
        home, log = sim.host("home"), Log(sim)
        home.serve("log", log)

        def the_entry_is_there() -> bool:
            return "entry" in log.entries

        sim.check_eventually(the_entry_is_there)

        async def write(remote: Any) -> None:
            while True:
                try:
                    await remote.add("entry")
                    return
                except OutcomeUnknown:
                    if not retries:
                        return

        for name in names:
            host = sim.host(name)
            host.spawn(write(host.remote(home, "log", timeout_s=1)), name="write")
        await asyncio.sleep(10)
        sim.heal()
        await sim.converge(within_s=5)
        assert the_entry_is_there()

    return program


def test_a_single_writer_that_does_not_retry_depends_on_its_request() -> None:
    found = search_lineage(SimulationTarget(program=writers(("one",), retries=False)), faults=1)
    assert found.failure is not None
    assert [event.text for event in found.failure.faults if ":" in event.text] == ["lose: request of log.add one>home"]
    assert found.runs == 2
    again = found.target.run(found.failure.tape)
    assert (again.diverged, again.hash) == (None, found.failure.hash)


@pytest.mark.parametrize(("names", "retries"), [(("one",), True), (("one", "two"), False)])
def test_redundancy_is_proved_up_to_the_bound_and_not_beyond(names: tuple[str, ...], retries: bool) -> None:
    """Either a retry or a second writer stands in for one lost request."""
    target = SimulationTarget(program=writers(names, retries=retries))
    one = search_lineage(target, faults=1)
    assert one.finished
    assert one.failure is None
    assert not retries or search_lineage(target, faults=3).failure is None
    assert retries or search_lineage(target, faults=2).failure is not None


def test_messages_that_an_outcome_does_not_rest_on_are_left_alone() -> None:
    found = search_lineage(SimulationTarget(program=writers(("one",), retries=True)), faults=1)
    (about,) = found.outcomes.values()
    assert {each.label for each in about.cut} == {"request of log.add one>home"}, "not its reply"


def test_a_controller_is_searched_through_its_whole_path() -> None:
    broken = search_lineage(SimulationTarget(program=careless), faults=1)
    assert broken.failure is not None
    assert any("lose: reply of api.create" in event.text for event in broken.failure.faults)
    sound = search_lineage(SimulationTarget(program=careful), faults=1)
    assert sound.finished
    assert sound.failure is None
    assert sound.runs < 60


def test_a_program_without_liveness_invariants_has_its_end_as_outcome() -> None:
    async def program(sim: Simulation) -> None:
        home = sim.host("home")
        home.serve("log", Log(sim))
        host = sim.host("one")
        await host.run(host.remote(home, "log").add("entry"))

    found = search_lineage(SimulationTarget(program=program), faults=1)
    assert list(found.outcomes) == [PROGRAM_ENDS]
    assert found.failure is not None


def test_a_search_that_stops_at_its_bound_is_not_finished() -> None:
    found = search_lineage(SimulationTarget(program=careful), faults=2, plans_max=5)
    assert not found.finished
    assert found.runs == 6


@given(st.lists(st.frozensets(st.sampled_from(MESSAGES), min_size=1), min_size=1, max_size=5), st.integers(1, 3))
def test_every_set_that_hits_all_supports_contains_one_that_is_found(supports: list[Any], size: int) -> None:
    found = list(hitting_sets(supports, size))
    assert all(len(plan) <= size and all(plan & each for each in supports) for plan in found)
    for count in range(1, size + 1):
        for chosen in combinations(MESSAGES, count):
            if all(frozenset(chosen) & each for each in supports):
                assert any(plan <= frozenset(chosen) for plan in found)
