"""Keys that were stolen: after the procedures of `docs/security.md` the thief is refused, and a new key works."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.kit.api_server import ServerProcess, running_server

from kedge.api.access import MASTERS
from kedge.server.http.certificates import Authority
from kedge.server.http.token_keys import FILE, SigningKeys

ACCOUNT = "system:serviceaccount:default:default"


def new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def forged_from(token: str, keys: SigningKeys) -> str:
    """Another token with the claims of `token`, signed by a thief that has `keys`."""
    claims = keys.verify(token)
    assert claims is not None, "the thief has the key of the token"
    forged = keys.sign({**claims, "jti": "forged"})
    assert forged != token
    return forged


def request_as(server: ServerProcess, certificate: Path) -> bytes:
    """The reply to the owner of `certificate`, which trusts the authority that the server has now."""
    context = ssl.create_default_context(cafile=str(server.state / "ca.crt"))
    context.load_cert_chain(certificate)
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        secured.sendall(b"GET /api/v1/secrets HTTP/1.1\r\nHost: kedge\r\nConnection: close\r\n\r\n")
        return secured.recv(64)


def is_refused(server: ServerProcess, certificate: Path) -> bool:
    """Whether the handshake fails or no reply comes. With TLS 1.3 a client sees the failure when it reads."""
    try:
        return not request_as(server, certificate)
    except (ssl.SSLError, ConnectionError):
        return True


def test_without_its_file_a_server_makes_the_same_signing_key_and_a_new_one_ends_old_tokens(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_server(state) as server:
        token = server.kubectl("create", "token", "default").strip()
        server.stop()
        before = (state / FILE).read_bytes()
        (state / FILE).unlink()
        server.start()
        assert (state / FILE).read_bytes() == before
        assert ACCOUNT in server.whoami(token), "a deleted file rotates nothing"
        server.stop()
        (state / FILE).write_bytes(new_key())
        with pytest.raises(AssertionError, match="other keys than its store: tokens is"):
            server.start()
    with running_server(state, "--replace-keys") as server:
        assert "the token is not signed by this cluster" in server.whoami(token)
        again = server.kubectl("create", "token", "default").strip()
        assert ACCOUNT in server.whoami(again)
    with running_server(state) as server:
        assert ACCOUNT in server.whoami(again), "the new key is recorded: the option is needed once"


def test_a_new_authority_refuses_certificates_and_tokens_of_the_stolen_one(tmp_path: Path) -> None:
    state, stolen = tmp_path / "state", tmp_path / "stolen"
    stolen.mkdir()
    with running_server(state) as server:
        for name in ("ca.pem", "agent-client.pem"):
            shutil.copy(state / name, stolen / name)
        now = datetime.now(UTC)
        thief = Authority.ensure(stolen, now)
        (stolen / "root.pem").write_bytes(thief.issue_client("thief", (MASTERS,), now).pem)
        token = server.kubectl("create", "token", "default").strip()
        keys = SigningKeys.ensure(stolen, thief)
        forged = forged_from(token, keys)
        assert ACCOUNT in server.whoami(forged)
        assert b" 200 " in request_as(server, stolen / "root.pem")
        assert b" 403 " in request_as(server, stolen / "agent-client.pem")
        server.stop()
    for name in ("ca.pem", FILE):
        (state / name).unlink()
    with running_server(state, "--replace-keys") as server:
        for name in ("root.pem", "agent-client.pem"):
            assert is_refused(server, stolen / name), name
        for each in (token, forged):
            assert "the token is not signed by this cluster" in server.whoami(each)
        record = server.kubectl("get", "cm", "-n", "kube-system", "kedge-server-keys", "-o", "json")
        assert json.loads(record)["data"]["authority"] != thief.fingerprint
