"""`kedge scenario`: what it prints, and the code that it ends with."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from kedge.cli import main
from kedge.env import system_env
from kedge.keys import Key
from kedge.sim.cluster.dump import plan_dump, read_dump
from kedge.sim.scenario import library_names, load_scenario

SMALL = """\
scenario: small
story: A ghost is waited for.
world:
  nodes:
    - {name: node-a}
steps: []
expect:
  - {object: NAME, within: 5s}
"""


def test_list_names_every_scenario_that_ships() -> None:
    done = CliRunner().invoke(main, ["scenario", "list"])
    assert done.exit_code == 0
    for name in library_names():
        assert name in done.output


def test_the_list_fits_a_terminal_of_80_columns_with_every_word_whole() -> None:
    lines = CliRunner().invoke(main, ["scenario", "list"]).output.splitlines()
    assert max(map(len, lines)) <= 80
    for found in map(load_scenario, library_names()):
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{found.name} "))
        assert lines[place].endswith(", ".join(each.name for each in found.weak))
        assert lines[place + 1] == f"  {found.lesson}"


def test_run_of_a_file_that_passes_ends_with_0_and_tells_the_timeline(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Node/node-a"))
    done = CliRunner().invoke(main, ["scenario", "run", str(file)])
    assert done.exit_code == 0, done.output
    assert "passed: small, seed 0" in done.output
    assert "Node/node-a is there" in done.output
    quiet = CliRunner().invoke(main, ["scenario", "run", "-q", str(file)])
    assert "TIME" not in quiet.output
    assert "passed" in quiet.output


def test_run_of_a_file_that_fails_ends_with_1_and_the_timeline(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Pod/ghost"))
    done = CliRunner().invoke(main, ["scenario", "run", "-q", str(file)])
    assert done.exit_code == 1
    assert "TIME" in done.output
    assert "broken: Pod/default/ghost is there" in done.output


def test_the_weak_variant_ends_with_1_and_names_what_it_broke() -> None:
    done = CliRunner().invoke(main, ["scenario", "run", "stale-policy-canary", "--weak"])
    assert done.exit_code == 1
    assert "failed: stale-policy-canary without bind-from-cache, seed 9" in done.output
    assert "broken: no commit adds to an overfull node" in done.output


def test_a_file_that_is_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("scenario: small\nstori: x\n")
    done = CliRunner().invoke(main, ["scenario", "run", str(file)])
    assert done.exit_code == 1
    assert f"{file}:2:1: a scenario has no `stori`: did you mean `story`?" in done.output


def test_a_run_that_is_kept_can_be_read_and_played_again(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Pod/ghost"))
    done = CliRunner().invoke(
        main, ["scenario", "run", "-q", str(file), "--seed", "4", "--out", str(tmp_path / "runs")]
    )
    assert done.exit_code == 1
    kept = tmp_path / "runs" / "small-seed-4"
    assert f"kept:   {kept}" in done.output
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        ["scenario.yaml", "outcome.json", "timeline.txt", "trace.txt", "objects.json"]
    )
    outcome = json.loads((kept / "outcome.json").read_text())
    assert (outcome["passed"], outcome["broken"]) == (False, "Pod/default/ghost is there")
    assert "Pod/default/ghost is there" in (kept / "timeline.txt").read_text()
    assert len((kept / "trace.txt").read_text().splitlines()) > len((kept / "timeline.txt").read_text().splitlines())
    names = [
        (each["kind"], each["metadata"]["name"]) for each in json.loads((kept / "objects.json").read_text())["items"]
    ]
    assert ("Node", "node-a") in names
    again = CliRunner().invoke(
        main,
        [
            *outcome["again"].replace("scenario.yaml", str(kept / "scenario.yaml")).split()[1:],
            "-o",
            str(tmp_path / "again"),
        ],
    )
    assert again.exit_code == 1
    repeated = json.loads((tmp_path / "again" / "small-seed-4" / "outcome.json").read_text())
    assert repeated["traceHash"] == outcome["traceHash"]


def test_the_objects_of_a_kept_run_load_as_another_beginning(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Node/node-a"))
    assert CliRunner().invoke(main, ["scenario", "run", "-q", str(file), "--out", str(tmp_path)]).exit_code == 0
    plan = plan_dump(read_dump(tmp_path / "small-seed-0" / "objects.json"), system_env())
    assert Key("Node", "", "node-a") in plan.values


def test_a_run_that_cannot_be_kept_says_where(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Node/node-a"))
    done = CliRunner().invoke(main, ["scenario", "run", "-q", str(file), "--out", str(tmp_path / "taken" / "below")])
    assert done.exit_code == 1
    assert "cannot be kept there" in done.output
