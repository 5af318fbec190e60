"""The outside world of a recording acts on a cluster with changed inputs; reported is whatever comes out otherwise."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.kit.recorded_runs import small_run

from kedge.cli.replay import replay
from kedge.errors import BadRequest, NotFound
from kedge.sim.incident.changed_world import with_changes
from kedge.sim.incident.rebuild import rebuild
from kedge.sim.incident.rerun import IncidentProgram, load_program
from kedge.sim.scenario.kept_runs import keep_run


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_run(small_run(), tmp_path_factory.mktemp("runs"))


def rebuilt() -> IncidentProgram:
    recording = small_run().recording
    begin = recording.states[0].at + timedelta(seconds=small_run().begin_s)
    return IncidentProgram(rebuild(recording, begin=begin).draft, recording, begin)


def test_a_node_without_its_zone_is_no_place(file: Path) -> None:
    """The label of a listed node is changed by a step; the pods of that zone fit nowhere."""
    done = CliRunner().invoke(
        replay, [str(file), "--what-if", "label/node-b/topology.kubernetes.io/zone=zone-x"], catch_exceptions=False
    )
    assert "acts came out as recorded" in done.output
    assert "default-scheduler, Pod/default/api-0: fits nowhere instead of bind to node-b" in done.output
    assert "at the end Pod/default/api-0: PodScheduled is False" in done.output


def test_changes_of_a_rebuilt_incident_are_in_its_dump() -> None:
    program = rebuilt()
    made = with_changes(program, ["node/node-a=cpu:8", "limit/lease_s=20", "node/node-c=like:node-b"])
    nodes = {each["metadata"]["name"]: each for each in made.dump or () if each["kind"] == "Node"}
    assert nodes["node-a"]["status"]["allocatable"]["cpu"] == "8"
    assert made.document["world"]["limits"]["lease_s"] == 20
    [added] = made.document["world"]["nodes"]
    assert (added["name"], added["zone"], added["resources"]["cpu"]) == ("node-c", "zone-b", "2")
    assert made.scenario().world.nodes[0].name == "node-c"


def test_an_object_that_is_created_later_is_changed_as_soon_as_it_exists() -> None:
    made = with_changes(rebuilt(), ["pod/web-0=-"])
    [step] = [
        each
        for each in made.document["meanwhile"]
        if each.get("delete") == {"object": "Pod/default/web-0", "force": True}
    ]
    assert step["at"].startswith("2")


def test_a_change_that_names_nothing_is_refused(file: Path) -> None:
    program = load_program(file)
    with pytest.raises(BadRequest, match="is no change of an input"):
        with_changes(program, ["nonsense"])
    with pytest.raises(NotFound, match="there is no limit"):
        with_changes(program, ["limit/none=3"])
    with pytest.raises(BadRequest, match="limit/NAME=NUMBER"):
        with_changes(program, ["limit/lease_s=x"])
    done = CliRunner().invoke(replay, [str(file), "--what-if", "taint/node-a/none=-"])
    assert done.exit_code == 2
    assert "node node-a has no taint none" in done.output
