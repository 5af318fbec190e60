"""Files that kedge writes for its user on a disk that is full: one sentence, nothing half written, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.up_workload import UpProcess, running_up
from tests.kit.api_server import running_server
from tests.kit.full_disk import small_disk

SCENARIO = """
scenario: nothing-happens
story: Nothing happens.
world:
  nodes: [{name: node-1}]
steps:
  - after: 1s
    note: nothing
"""


def kedge(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_backup_to_a_full_disk_leaves_no_file_and_the_server_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk, running_server(tmp_path / "state") as server:
        (tmp_path / "big").write_bytes(os.urandom(400_000).hex().encode())
        server.kubectl("create", "configmap", "big", f"--from-file={tmp_path / 'big'}")
        code, _, said = kedge("backup", str(disk / "b"), "--state", str(server.state))
        assert code == 1
        assert "No space left" in said
        assert list(disk.iterdir()) == []
        assert server.kubectl("get", "configmap", "big", "-o", "name") == "configmap/big\n"
        code, _, _ = kedge("backup", str(tmp_path / "b"), "--state", str(server.state))
        assert code == 0


def test_chaos_prints_its_verdict_even_if_its_records_cannot_be_kept(tmp_path: Path) -> None:
    scenario = tmp_path / "nothing.yaml"
    scenario.write_text(SCENARIO)
    with small_disk(tmp_path / "disk", "4k") as disk:
        (disk / "filler").write_bytes(b"x" * 4096)
        with running_up(UpProcess(tmp_path / "state", "--nodes", "1")) as up:
            code, shown, said = kedge("chaos", str(scenario), "--state", str(up.state), "--out", str(disk))
        assert code == 1
        assert "every expectation and every invariant held" in shown, said
        assert "cannot be written" in said
        assert [each.name for each in disk.iterdir()] == ["filler"]
