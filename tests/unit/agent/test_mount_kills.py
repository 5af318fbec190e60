"""A keeper that is killed after it has mounted the volumes of a process and before the program is executed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.agent import pod_view
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, alive, driver_in, keeper_pid, log_of, only, start_pod

from kedge.agent.process import keeper, mounts
from kedge.keys import Key

NAMESPACES = pytest.mark.skipif(not mounts.are_possible(), reason="this machine allows no mount namespace")
SLOW_KEEPER = """
import sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import mounts

bind_all, mounted, go = mounts.bind_all, Path(sys.argv[3]), Path(sys.argv[4])


def bind_and_wait(*given):
    bind_all(*given)
    mounted.touch()
    while not go.exists():
        time.sleep(0.01)


mounts.bind_all = bind_and_wait
import keeper

sys.exit(keeper.main(Path(sys.argv[2])))
"""


def start_slow_keeper(folder: Path, mounted: Path, go: Path) -> None:
    """A keeper whose children wait between their mounts and exec. It leaves its parent, as every keeper does."""
    code = str(Path(keeper.__file__).parent)
    command = [sys.executable, "-I", "-S", "-c", SLOW_KEEPER, code, str(folder), str(mounted), str(go)]
    with (folder / "keeper.log").open("ab") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=True)


def slow_keeper(folder: Path) -> int:
    """Its pid; the children that wait have the same command line and another parent."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            line, status = (each / "cmdline").read_bytes(), (each / "stat").read_text()
        except OSError:
            continue
        parent = int(status.rsplit(")", 1)[1].split()[1])
        if b"bind_and_wait" in line and str(folder).encode() in line:
            found.append((int(each.name), parent))
    (top,) = [pid for pid, parent in found if parent not in [other for other, _ in found]]
    return top


@NAMESPACES
@on_loop
async def test_a_program_is_executed_once_and_is_not_forgotten(tmp_path: Path) -> None:
    """1. The record is written. 2. The volumes are mounted. 3. The keeper is killed. 4. The program is executed.

    The next keeper finds the process by pid and start time between 3 and 4, when it has no marker yet.
    """
    folder, mounted, go = tmp_path / "node", tmp_path / "mounted", tmp_path / "go"
    folder.mkdir()
    container = {
        "name": "main",
        "image": "x",
        "command": ["sh", "-c", "cat /kedge-test-mount/v/color; exec sleep 600"],
        "volumeMounts": [{"name": "v", "mountPath": "/kedge-test-mount/v"}],
    }
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    pod = pod_view(metadata={"uid": POD.pod_uid, "name": "web"}, containers=[container], volumes=volumes)
    objects = {Key("ConfigMap", "default", "settings"): {"data": {"color": "blue\n"}}}
    start_slow_keeper(folder, mounted, go)
    async with driver_in(folder) as driver:
        starting = asyncio.ensure_future(start_pod(driver, pod, pod.spec.containers[0], objects={**objects}))
        await eventually(mounted.exists)
        os.kill(slow_keeper(folder), signal.SIGKILL)
        await asyncio.wait_for(starting, 60)
        assert keeper_pid(folder), "another keeper serves"
        waiting = await only(driver)
        assert waiting.running
        go.touch()
        await eventually(lambda: log_of(folder) == "blue\n")
        for _ in range(2):
            await start_pod(driver, pod, pod.spec.containers[0], objects={**objects})
        found = await only(driver)
        assert found == waiting
        assert alive(await driver.pid_of(POD.pod_uid))
        assert log_of(folder) == "blue\n", "it is executed once"
    assert not Path("/kedge-test-mount").exists()  # noqa: ASYNC240
