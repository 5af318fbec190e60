"""`kedge scenario`: what it prints, and the code that it ends with."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kedge.cli import main
from kedge.sim.scenario import library_names

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
    assert f"{file}:1:1: a scenario lacks `story`: add it" in done.output
