"""A recorded run is rebuilt from its records alone, and its components decide the same again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.recorded_runs import small_run, tied_run

from kedge.observe.readers.recording import Recording
from kedge.sim.incident.draft import seconds_of
from kedge.sim.incident.rebuild import NotRebuildable, rebuild
from kedge.sim.incident.rerun import IncidentProgram, load_program, nearest
from kedge.sim.scenario.kept_runs import keep_run


def recorded() -> tuple[Recording, Any]:
    run = small_run()
    return run.recording, run.recording.states[0].at + timedelta(seconds=run.begin_s)


def steps(verb: str) -> list[dict[str, Any]]:
    recording, begin = recorded()
    return [each for each in rebuild(recording, begin=begin).draft.document["meanwhile"] if verb in each]


def test_people_act_again_at_their_times() -> None:
    admitted = steps("admit")
    assert [each["admit"]["metadata"] for each in admitted] == [
        {"name": "web", "namespace": "default"},
        {"name": "api", "namespace": "default"},
    ]
    assert all("status" not in each["admit"] for each in admitted)
    assert 2.0 <= seconds_of(admitted[0]["at"]) < 2.2
    changes = [each["change"]["patch"] for each in steps("change")]
    assert changes == [
        {"spec": {"replicas": 2}},
        {"spec": {"replicas": 3}},
        {"metadata": {"labels": {"touched": "yes"}}},
    ]
    assert [each["delete"] for each in steps("delete")] == ["Pod/default/web-2"]


def test_failures_are_found_in_the_records() -> None:
    [lost] = steps("lose reply")
    assert lost["lose reply"] | {"timeout": ""} == {
        "to": "bind", "on": "Pod/default/api-0", "by": "default-scheduler", "after": "commit", "timeout": "",
    }  # fmt: skip
    [ended] = steps("end process")
    assert ended["end process"] == {"of": "Pod/default/web-0", "code": 3}
    [silent] = steps("partition node")
    assert silent["partition node"]["node"] == "node-b"
    assert 45 <= seconds_of(silent["partition node"]["lasting"]) < 60


def test_a_late_watch_is_found_by_the_decisions_that_lacked_its_events() -> None:
    recording, begin = recorded()
    # The scheduler had a pod late. Without its late decisions no record would show that.
    [late] = [each for each in steps("delay watch") if each["delay watch"]["to"] == "default-scheduler"]
    assert late["delay watch"]["of"] == "Pod"
    assert 20.0 <= seconds_of(late["at"]) <= 21.0
    assert 10.0 <= seconds_of(late["delay watch"]["by"]) <= 13.0
    silent = replace_decisions(recording, [])
    found = rebuild(silent, begin=begin).draft.document["meanwhile"]
    assert not [each for each in found if "delay watch" in each]


def replace_decisions(recording: Recording, decisions: list[Any]) -> Recording:
    return replace(recording, decisions=decisions)


def test_the_components_decide_the_same_again() -> None:
    recording, begin = recorded()
    rebuilt = rebuild(recording, begin=begin)
    program = IncidentProgram(rebuilt.draft, recording, begin)
    _, run, found = nearest(program, seeds=1)
    assert run.rule == ""
    # The heartbeat after a partition comes when the agent tries again, which the records do not show to the second.
    assert [str(each) for each in found.departures if each.at_s < 80] == []
    assert found.same > 10


def tied_program(seed: int) -> IncidentProgram:
    run = tied_run(seed)
    begin = run.recording.states[0].at + timedelta(seconds=run.begin_s)
    return IncidentProgram(rebuild(run.recording, begin=begin).draft, run.recording, begin)


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_ties_between_nodes_are_broken_as_recorded(seed: int) -> None:
    program = tied_program(seed)
    assert len(program.draft.document["world"]["draws"]) == 6
    for other in (0, 1):
        one = replace(program, seed=other)
        assert [str(each) for each in one.compare(one.run()).departures] == []


def test_without_recorded_draws_ties_are_broken_otherwise() -> None:
    departed = 0
    for seed in (11, 12, 13):
        program = tied_program(seed)
        world = {name: value for name, value in program.draft.document["world"].items() if name != "draws"}
        program = replace(program, draft=program.draft.changed(world=world))
        departed += bool(program.compare(program.run()).departures)
    assert departed == 3


def test_a_run_that_departs_names_the_first_decision() -> None:
    recording, begin = recorded()
    rebuilt = rebuild(recording, begin=begin)
    meanwhile = [each for each in rebuilt.draft.document["meanwhile"] if "end process" not in each]
    program = IncidentProgram(rebuilt.draft.changed(meanwhile=meanwhile), recording, begin)
    _, _, found = nearest(program, seeds=1)
    assert str(found.departures[0]).partition(" ")[2].startswith("agent-node-a, Pod/default/web-0: ")
    assert "instead of exit main: exit code 3" in str(found.departures[0])


def test_a_kept_run_is_run_with_its_own_scenario_and_tape(tmp_path: Path) -> None:
    program = load_program(keep_run(small_run(), tmp_path))
    assert program.exact
    run = program.run(lenient=False)
    assert run.outcome.steps == small_run().outcome.steps
    assert program.compare(run).departures == ()


def test_a_recording_without_history_cannot_be_rebuilt() -> None:
    with pytest.raises(NotRebuildable, match="no history of the store"):
        rebuild(Recording())
    recording, _ = recorded()
    with pytest.raises(NotRebuildable, match="no node at its begin"):
        rebuild(recording)
