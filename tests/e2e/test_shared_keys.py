"""Servers of one store: their keys are in one folder, and a server with other keys does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.api_server import running_server


def test_a_server_with_other_keys_than_its_store_refuses_to_start(tmp_path: Path) -> None:
    state, pki = tmp_path / "state", tmp_path / "pki"
    with running_server(state, "--pki", str(pki)) as server:
        server.kubectl("get", "namespaces")
        assert {each.name for each in pki.iterdir()} == {"ca.pem", "ca.crt", "service-accounts.pem"}
        assert not (state / "ca.pem").exists()
        assert "authority" in server.kubectl("get", "cm", "-n", "kube-system", "kedge-server-keys", "-o", "yaml")
    command = [sys.executable, "-m", "kedge", "server", "--state", str(state), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "this server has other keys than its store" in done.stderr
    assert "--pki" in done.stderr
    with running_server(state, "--pki", str(pki)) as server:
        server.kubectl("get", "namespaces")
    with running_server(state, "--replace-keys") as server:
        server.kubectl("get", "namespaces")
