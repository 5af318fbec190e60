"""A hunt on a Dask cluster: a scheduler and two worker processes of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.etcd_server import free_port

from kedge.sim.kernel import find_target, hunt
from kedge.sim.kernel.dask_executor import DaskUnusable

KIT = Path(__file__).parents[1] / "kit"
TARGET = f"{KIT}/planted_bugs.py:duplicate_create"
SCHEDULER = "from distributed.cli.dask_scheduler import main; main()"
WORKER = "from distributed.cli.dask_worker import main; main()"


class DaskCluster(NamedTuple):
    address: str
    workers: frozenset[int]
    """Their process ids."""


@contextmanager
def started(program: str, *arguments: str, cwd: Path) -> Iterator[int]:
    with (cwd / "dask.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=log, stderr=log, cwd=cwd)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    folder = tmp_path_factory.mktemp("dask")
    address = f"127.0.0.1:{free_port()}"
    host, _, port = address.partition(":")
    worker = (f"tcp://{address}", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")
    with (
        started(SCHEDULER, "--host", host, "--port", port, "--no-dashboard", cwd=folder),
        started(WORKER, *worker, cwd=folder) as first,
        started(WORKER, *worker, cwd=folder) as second,
    ):
        deadline = time.monotonic() + 60
        while (folder / "dask.log").read_text().count("Registered to") < 2:
            assert time.monotonic() < deadline, (folder / "dask.log").read_text()
            time.sleep(0.1)
        yield DaskCluster(f"dask://{address}", frozenset([first, second]))


@pytest.fixture
def dask(cluster: DaskCluster) -> str:
    return cluster.address


PROGRAM = """
import os
from pathlib import Path

async def run(sim):
    with Path(__file__).with_name("pids").open("a") as out:
        out.write(f"{os.getpid()}\\n")
    if sim.choose("number", range(8)) == 3:
        raise ValueError("three is wrong")
"""


def test_the_command_line_hunts_on_two_workers(cluster: DaskCluster, tmp_path: Path) -> None:
    program = tmp_path / "three.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "kedge", "hunt", f"{program}:run", "--seeds", "80", "--jobs", "2"]

    def hunted(*options: str) -> list[str]:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert "three is wrong" in done.stdout
        return [line for line in done.stdout.splitlines() if " seeds, first" in line]

    there = hunted("--executor", cluster.address)
    pids = {int(line) for line in (tmp_path / "pids").read_text().split()}
    assert cluster.workers <= pids
    assert there == hunted() != []


def test_a_hunt_on_two_workers_finds_what_a_hunt_here_finds(dask: str) -> None:
    there = hunt(find_target(TARGET), range(60), executor=dask, jobs=2, shrink_runs_max=0)
    here = hunt(find_target(TARGET), range(60), executor="inline", shrink_runs_max=0)
    assert there.groups.keys() == here.groups.keys()
    assert here.groups
    assert (there.done, there.failures, there.lost, there.broken) == (60, here.failures, [], [])


def test_workers_of_another_build_are_refused(dask: str, tmp_path: Path) -> None:
    """A worker keeps the target as it first loaded it: once the file has changed, it runs something else."""
    program = tmp_path / "program.py"
    program.write_text("async def run(sim):\n    pass\n")
    target = find_target(f"{program}:run")
    assert hunt(target, range(2), executor=dask, jobs=1).done == 2
    program.write_text("async def run(sim):\n    raise ValueError\n")
    with pytest.raises(DaskUnusable, match="2 of 2 Dask workers have not this build"):
        hunt(target, range(2), executor=dask, jobs=1)


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.sim.kernel.dask_executor.CONNECT_S", 0.5)
    with pytest.raises(DaskUnusable, match="no Dask scheduler answers"):
        hunt(find_target(TARGET), range(2), executor=f"dask://127.0.0.1:{free_port()}")
