"""`kedge token` as a person uses it, with the real kubectl."""

from __future__ import annotations

from pathlib import Path

from tests.kit.api_server import running_server
from tests.kit.token_command import token_command


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
