"""`kedge doctor`: each check reports what works without its part, and a missing program is no failure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from kedge.cli.examinations import UNSOUND_ETCD, Outcome, examine


def doctor(state: Path, port: int, path: str) -> tuple[int, dict[str, dict[str, str]]]:
    command = [sys.executable, "-m", "kedge", "doctor", "-o", "json", "--state", str(state)]
    done = subprocess.run(
        [*command, "--listen", f"127.0.0.1:{port}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}


def test_programs_that_are_missing_are_named_with_the_way_without_them(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "state", 0, path=str(tmp_path))
    assert code == 0
    for name in ("kubectl", "etcd"):
        assert found[name]["outcome"] == "limited"
        assert found[name]["without"]
    assert found["python"]["outcome"] == found["sqlite"]["outcome"] == "ok"
    assert not (tmp_path / "state").exists(), "a check changes nothing"


def test_a_port_in_use_is_named_with_the_next_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        checks = {each.name: each for each in examine(tmp_path, "127.0.0.1", taken.getsockname()[1])}
    assert checks["port"].outcome is Outcome.LIMITED
    assert "--listen 127.0.0.1:0" in checks["port"].without


def test_a_state_folder_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = {each.name: each for each in examine(tmp_path / "file" / "state", "127.0.0.1", 0)}
    assert checks["state"].outcome is Outcome.LIMITED
    assert "--state DIR" in checks["state"].without


def test_every_check_has_a_way_without_unless_it_is_fine(tmp_path: Path) -> None:
    for each in examine(tmp_path, "127.0.0.1", 0):
        assert each.outcome is Outcome.OK or each.without, each


def test_releases_of_etcd_that_lose_data_are_known() -> None:
    assert UNSOUND_ETCD.search("3.5.1")
    assert not UNSOUND_ETCD.search("3.5.12")
    assert not UNSOUND_ETCD.search("3.4.30")
