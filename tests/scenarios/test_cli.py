"""`kedge scenario`: its output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from kedge.cli import main
from kedge.sim.scenario import library_names, load_scenario

SMALL = """\
scenario: small
story: An object that may not exist is expected.
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


def test_the_list_fits_a_terminal_of_80_columns() -> None:
    lines = CliRunner().invoke(main, ["scenario", "list"]).output.splitlines()
    assert max(map(len, lines)) <= 80
    for found in map(load_scenario, library_names()):
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{found.name} "))
        assert lines[place].endswith(", ".join(each.name for each in found.weak))
        assert lines[place + 1] == f"  {found.lesson}"


def test_run_of_a_file_that_passes_exits_with_0_and_prints_the_timeline(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Node/node-a"))
    done = CliRunner().invoke(main, ["scenario", "run", str(file)])
    assert done.exit_code == 0, done.output
    assert "passed: small, seed 0" in done.output
    assert "Node node-a exists" in done.output
    quiet = CliRunner().invoke(main, ["scenario", "run", "-q", str(file)])
    assert "TIME" not in quiet.output
    assert "passed" in quiet.output


def test_run_of_a_file_that_fails_exits_with_1_and_the_timeline(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Pod/ghost"))
    done = CliRunner().invoke(main, ["scenario", "run", "-q", str(file)])
    assert done.exit_code == 1
    assert "TIME" in done.output
    assert "broken: Pod/default/ghost exists" in done.output


def test_the_weak_variant_exits_with_1_and_names_the_broken_invariant() -> None:
    done = CliRunner().invoke(main, ["scenario", "run", "stale-policy-canary", "--weak"])
    assert done.exit_code == 1
    assert "failed: stale-policy-canary without bind-from-cache, seed 9" in done.output
    assert "broken: no commit adds to an overfull node" in done.output


def test_the_error_for_an_invalid_file_has_its_location(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("scenario: small\nstori: x\n")
    done = CliRunner().invoke(main, ["scenario", "run", str(file)])
    assert done.exit_code == 2
    assert f"{file}:2:1: a scenario has no `stori`: did you mean `story`?" in done.output


def test_a_kept_run_can_be_replayed(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Pod/ghost"))
    done = CliRunner().invoke(
        main, ["scenario", "run", "-q", str(file), "--seed", "4", "--out", str(tmp_path / "runs")]
    )
    assert done.exit_code == 1
    kept = tmp_path / "runs" / "small-seed-4.kedge"
    assert f"kept:   {kept}" in done.output
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    again = CliRunner().invoke(main, ["replay", str(kept)])
    assert again.exit_code == 0, again.output
    assert "scenario small, seed 4" in again.output
    assert "violation  Pod ghost exists" in again.output
    assert "same: Pod/default/ghost exists" in again.output


def test_a_kept_run_is_extracted_for_other_tools(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("NAME", "Pod/ghost"))
    CliRunner().invoke(main, ["scenario", "run", "-q", str(file), "--out", str(tmp_path)])
    folder = tmp_path / "parts"
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "small-seed-0.kedge"), "--extract", str(folder)])
    assert done.exit_code == 0, done.output
    texts = ["scenario.yaml", "run.json", "timeline.txt", "trace.txt"]
    names = [*texts, "initial.json", "policies.json", "decisions.json", "objects.json"]
    assert done.output.split() == [str(folder / name) for name in names]
    run = json.loads((folder / "run.json").read_text())
    assert run["violation"]["invariant"] == "Pod/default/ghost exists"
    assert "violation  Pod ghost exists" in (folder / "timeline.txt").read_text()
    assert (folder / "scenario.yaml").read_text() == file.read_text()
    listed = json.loads((folder / "objects.json").read_text())["items"]
    assert ("Node", "node-a") in [(each["kind"], each["metadata"]["name"]) for each in listed]
