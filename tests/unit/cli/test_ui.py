"""`kedge ui`: one document of a file as JSON, and sentences for what cannot be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.sim.scenario import keep_run, load_scenario, run_scenario


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run_scenario(load_scenario("duplicate-reservation"), keep=True)
    return keep_run(done, tmp_path_factory.mktemp("kept"))


def test_a_document_is_printed_as_json(kept: Path) -> None:
    done = CliRunner().invoke(main, ["ui", str(kept), "--document", "place?revision=20"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["kind"], found["point"]["revision"]) == ("Place", 20)


def test_an_unknown_document_is_a_sentence_with_the_known_ones(kept: Path) -> None:
    done = CliRunner().invoke(main, ["ui", str(kept), "--document", "nothing"])
    assert done.exit_code == 1
    assert "there is no document nothing: use one of history" in done.output


def test_a_file_that_is_no_recording_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no recording")
    done = CliRunner().invoke(main, ["ui", str(file), "--document", "place"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")


def test_a_document_or_a_port_needs_a_file() -> None:
    done = CliRunner().invoke(main, ["ui", "--document", "place"])
    assert done.exit_code == 2
    assert "go with FILE" in done.output


def test_without_a_cluster_the_next_step_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["ui", "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert "kedge up" in done.output
