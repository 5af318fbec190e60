"""The pytest plugin, in its own pytest run: seeds, reports, files, replay, xdist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SIMULATED = '''
import asyncio

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import FixedRates, Simulation, simulate

CAREFUL = False


class Register:
    def __init__(self):
        self.names = []

    async def create(self, name):
        if CAREFUL and name in self.names:
            return
        self.names.append(name)


@simulate(seeds=60, faults=FixedRates({"reply of register.create: lose": 0.05}))
async def test_a_name_is_created_once(sim: Simulation) -> None:
    """Fails: a lost reply is treated as a failure."""
    register = Register()
    server, client = sim.host("server"), sim.host("client")
    server.serve("register", register)
    remote = client.remote(server, "register")

    async def work():
        for index in range(sim.choose_int("objects", 1, 6)):
            while True:
                try:
                    await remote.create(f"pod-{index}")
                    break
                except (OutcomeUnknown, Unavailable):
                    continue

    await client.run(work())
    assert len(register.names) == len(set(register.names))


@simulate(seeds=5)
async def test_time_passes(sim: Simulation) -> None:
    await asyncio.sleep(100)
    assert sim.now_s == 100


@simulate(seeds=5, marks=("never there",))
async def test_without_progress(sim: Simulation) -> None:
    await asyncio.sleep(1)


def test_plain():
    pass
'''


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(directory), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_simulated.py").write_text(SIMULATED)
    return tmp_path


def failure_in(project: Path) -> Path:
    (found,) = (project / ".kedge" / "failures").glob("*.kedge")
    return found


def test_a_failure_is_printed_kept_and_replayed_by_its_command(project: Path) -> None:
    ended = run_pytest(project, "-k", "created_once", "test_simulated.py")
    assert ended.returncode == 1
    assert "broken     the program ends well" in ended.stdout
    assert "lose: reply of register.create" in ended.stdout
    assert "yes  lose: reply of register.create" in ended.stdout
    file = failure_in(project)
    assert f"kedge replay .kedge/failures/{file.name}" in ended.stdout

    kedge = [sys.executable, "-c", "from kedge.cli import main; main()"]
    again = subprocess.run([*kedge, "replay", str(file)], cwd=project, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "same: the program ends well" in again.stdout


def test_replay_runs_only_the_recorded_test_and_passes_once_it_is_fixed(project: Path) -> None:
    run_pytest(project, "test_simulated.py")
    file = failure_in(project)
    broken = run_pytest(project, "test_simulated.py", "--kedge-replay", str(file))
    assert broken.returncode == 1
    assert "1 failed, 3 deselected" in broken.stdout
    (project / "test_simulated.py").write_text(SIMULATED.replace("CAREFUL = False", "CAREFUL = True"))
    mended = run_pytest(project, "test_simulated.py", "--kedge-replay", str(file))
    assert mended.returncode == 0, mended.stdout
    assert "1 passed, 3 deselected" in mended.stdout


def test_a_test_that_reaches_none_of_its_marks_fails_and_names_them(project: Path) -> None:
    ended = run_pytest(project, "-k", "without_progress", "test_simulated.py")
    assert ended.returncode == 1
    assert "no seed of 5 reached never there" in ended.stdout


def test_seeds_are_set_on_the_command_line(project: Path) -> None:
    ended = run_pytest(project, "--kedge-seeds", "1", "--kedge-start", "2", "test_simulated.py")
    assert ended.returncode == 0, ended.stdout
    assert "4 passed" in ended.stdout


def test_the_plugin_works_under_xdist(project: Path) -> None:
    ended = run_pytest(project, "-n", "2", "test_simulated.py")
    assert ended.returncode == 1
    assert "2 failed, 2 passed" in ended.stdout
    assert "replay     kedge replay .kedge/failures/" in ended.stdout
    assert failure_in(project).exists()


def test_a_file_that_is_not_a_failure_is_a_usage_error(project: Path) -> None:
    (project / "other.json").write_text('{"format": "something else"}')
    ended = run_pytest(project, "test_simulated.py", "--kedge-replay", "other.json")
    assert ended.returncode == 4
    assert "is not a file that kedge kept" in ended.stdout + ended.stderr
