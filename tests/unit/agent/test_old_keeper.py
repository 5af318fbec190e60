"""An agent whose node is held by a keeper of an earlier version: it works with what that keeper can do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, driver_in, keeper_pid, log_of, only, pod_of, start

from kedge.agent.core.driver import CannotResize
from kedge.agent.process import ProcessDriver, keeper
from kedge.agent.process.channel import MissingOperation


def start_old_keeper(folder: Path, sources: Path, *missing: str) -> None:
    """Run the keeper as it was before it had some operations."""
    shutil.copytree(Path(keeper.__file__).parent, sources)
    program = sources / "keeper.py"
    text = program.read_text()
    for operation in missing:
        assert text.count(f'case "{operation}":') == 1
        text = text.replace(f'case "{operation}":', f'case "later {operation}":')
    program.write_text(text)
    folder.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-I", "-S", str(program), str(folder)], check=True, start_new_session=True)


@on_loop
async def test_an_agent_runs_processes_with_a_keeper_that_knows_no_abilities_and_no_resize(tmp_path: Path) -> None:
    node = tmp_path / "node"
    start_old_keeper(node, tmp_path / "old", "abilities", "resize", "consumption")
    old = keeper_pid(node)
    async with driver_in(node) as driver:
        conditions = await driver.conditions()
        assert [(each.type, each.status, each.reason) for each in conditions] == [
            ("ResourceLimits", False, "KeeperOutdated"),
            ("VolumeMounts", False, "KeeperOutdated"),
        ]
        assert "restart the agent to replace it" in conditions[0].message
        await start(driver, "sh", "-c", "echo begun; exec sleep 600")
        await eventually(lambda: log_of(node) == "begun\n")
        _, container = pod_of("sleep", "600")
        with pytest.raises(CannotResize, match="older than its agent"):
            await driver.resize(POD, container)
        with pytest.raises(MissingOperation):
            await driver.consumption()
        assert (await only(driver)).running
        assert keeper_pid(node) == old


@on_loop
async def test_an_idle_keeper_is_replaced_by_one_of_the_agents_version(tmp_path: Path) -> None:
    node = tmp_path / "node"
    start_old_keeper(node, tmp_path / "old", "abilities")
    leaving = ProcessDriver(node, environment=os.environ)
    await leaving.shutdown(grace_s=0)  # as an agent does that is stopped when nothing runs
    await leaving.close()
    async with driver_in(node) as driver:
        assert "KeeperOutdated" not in [each.reason for each in await driver.conditions()]
