"""`kedge token` as a person uses it, with the real kubectl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.api_server import ServerProcess, running_server


def token_command(server: ServerProcess, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "token", *arguments],
        env=server.client_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_token_is_made_used_listed_and_revoked(tmp_path: Path) -> None:
    with running_server(tmp_path / "state") as server:
        token = token_command(server, "create", "--user", "ada", "--group", "system:masters", "--ttl", "1h").strip()
        bare = tmp_path / "bare.kubeconfig"
        bare.write_text("")
        plain = ("--kubeconfig", str(bare), "--server", server.url)
        as_ada = (*plain, "--certificate-authority", str(server.state / "ca.crt"), "--token", token)
        assert "ada" in server.kubectl("auth", "whoami", *as_ada)
        server.kubectl("create", "configmap", "by-token", *as_ada)
        listed = token_command(server, "list")
        assert token.partition(".")[0] in listed
        assert "system:masters" in listed
        assert token.partition(".")[2] not in listed
        assert token.partition(".")[2] not in server.kubectl("get", "secrets", "-A", "-o", "json")
        assert "deleted" in token_command(server, "delete", token.partition(".")[0])
        assert "the token is not known" in server.kubectl("get", "cm", *as_ada, check=False)
        assert "not found" in token_command(server, "delete", token.partition(".")[0], check=False)
        assert "--ttl" in token_command(server, "create", "--user", "ada", "--ttl", "soon", check=False)
