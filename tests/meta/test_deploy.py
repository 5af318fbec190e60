"""The files in `deploy/`: units that systemd accepts, and commands and options that kedge has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.cli.configuration.reader import read_config

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


def check_options(words: list[str]) -> None:
    """Every option is one that the verb has."""
    verb, *rest = words
    done = subprocess.run([sys.executable, "-m", "kedge", verb, "--help"], capture_output=True, text=True, check=True)
    for word in rest:
        if word.startswith("--"):
            assert word in done.stdout, f"kedge {verb} has no option {word}"


def test_there_is_a_unit_for_each_part() -> None:
    assert [path.stem for path in UNITS] == ["kedge-agent", "kedge-controllers", "kedge-scheduler", "kedge-server"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists(path: Path) -> None:
    found = unit(path)
    assert set(found.sections()) == {"Unit", "Service", "Install"}
    program, *words = shlex.split(found["Service"]["ExecStart"])
    assert program == "/opt/kedge/bin/kedge"
    assert words[0] == path.stem.removeprefix("kedge-")
    check_options(words)
    assert words[1:3] == ["--config", "/etc/kedge/config.yaml"]
    assert found["Service"]["Restart"] == "always"


def test_the_configuration_of_the_units_has_no_mistakes_and_a_section_for_each() -> None:
    found = read_config(ROOT / "deploy" / "config.yaml")
    assert sorted(found.settings) == [path.stem.removeprefix("kedge-") for path in UNITS]
    for path in UNITS:
        folder = unit(path)["Service"].get("StateDirectory", "")
        state = found.values(path.stem.removeprefix("kedge-")).get("state", Path("/var/lib"))
        assert Path(state) == Path("/var/lib") / folder, "the state is in the folder that systemd makes"


def test_stopping_the_agent_leaves_the_pods_running() -> None:
    agent = unit(ROOT / "deploy" / "systemd" / "kedge-agent.service")["Service"]
    assert agent["KillMode"] == "process"
    assert "PrivateTmp" not in agent, "processes of pods live in the machine's own folders"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    text = path.read_text().replace("/opt/kedge/bin/kedge", "/bin/true").replace("User=kedge\n", "")
    copy = tmp_path / path.name
    copy.write_text(text)
    done = subprocess.run([program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert complaints == []


def test_the_dockerfile_parses_and_starts_a_command_that_exists() -> None:
    joined = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    assert lines[0].startswith("FROM ")
    (command,) = [line.removeprefix("CMD ") for line in lines if line.startswith("CMD ")]
    words: list[str] = json.loads(command)
    check_options(words)
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), f"{source} is copied and does not exist"
