"""Identities over real TLS: client certificates and bearer tokens, good and bad."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.loops import eventually, on_loop

from kedge.api.access import MASTERS
from kedge.api.kinds import KINDS
from kedge.api.tokens import format_token, parse_token_secret, token_key, token_secret
from kedge.api.wellknown import SECRET_KIND, SYSTEM_NAMESPACE
from kedge.env import system_env
from kedge.limits import Limits
from kedge.server.http.certificates import Authority, Certificate
from kedge.server.http.connections import Connections
from kedge.server.http.server import ApiServer, TlsFiles, bound_tls_buffers, tls_context
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

NOW = datetime.now(UTC)
WHOAMI = b"/apis/authentication.k8s.io/v1/selfsubjectreviews"
TOKEN = format_token("abcdefghij", b"0123456789abcdef0123456789abcdef")


class SecureServer:
    """A server over TLS on the memory store, and the authority of its cluster."""

    def __init__(
        self, service: Service, connections: Connections, port: int, folder: Path, authority: Authority
    ) -> None:
        self.service = service
        self.authority = authority
        self.connections = connections
        self.port = port
        self._folder = folder

    @property
    def handshakes_failed(self) -> float:
        return self.connections.env.metrics.counter("kedge_http_handshakes_failed_total", "", ()).value

    async def whoami(self, client: Certificate | None = None, token: str = "") -> tuple[int, dict[str, Any]]:
        """The code and the body of a SelfSubjectReview; code 0 if TLS refuses the certificate."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's default from 3.13 on
        if client is not None:
            (self._folder / "client.pem").write_bytes(client.pem)
            context.load_cert_chain(self._folder / "client.pem")
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n" % WHOAMI
        if token:
            head += b"Authorization: Bearer %b\r\n" % token.encode()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
            writer.write(head + b"\r\n{}")
            reply = await asyncio.wait_for(reader.read(), 20)
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return 0, {}
        if not reply:
            return 0, {}
        first, _, body = reply.partition(b"\r\n\r\n")
        return int(first.split()[1]), json.loads(body)

    async def store_token(self, token: str, *, expires: datetime | None = None, **fields: Any) -> None:
        body = {**token_secret(token, "someone", ("readers",), expires), **fields}
        await self.service.create(KINDS.of_key_kind(SECRET_KIND), body, namespace=SYSTEM_NAMESPACE)


@asynccontextmanager
async def secure_server(folder: Path, *, limits: Limits | None = None) -> AsyncIterator[SecureServer]:
    env = system_env(limits=limits)
    store = MemoryStore(env)
    service = Service(store, env)
    await service.create(KINDS.resolve("namespace"), {"metadata": {"name": SYSTEM_NAMESPACE}})
    await service.ensure_default_roles()
    authority = Authority.ensure(folder, NOW)
    authority.ensure_serving(folder / "serving.pem", ["127.0.0.1"], NOW)
    server = ApiServer(service, env)
    tls = tls_context(TlsFiles(serving=folder / "serving.pem", authority=folder / "ca.crt"))
    port = await server.start("127.0.0.1", 0, tls)
    try:
        yield SecureServer(service, server.connections, port, folder, authority)
    finally:
        await server.stop()
        await store.close()


@on_loop
async def test_a_certificate_of_the_cluster_is_its_user_and_groups(tmp_path: Path) -> None:
    async with secure_server(tmp_path) as server:
        code, found = await server.whoami(server.authority.issue_client("ada", ("g1", "g2"), NOW))
        anonymous, refusal = await server.whoami()
    assert code == 201
    assert found["status"]["userInfo"] == {"username": "ada", "groups": ["g1", "g2", "system:authenticated"]}
    assert (anonymous, refusal["reason"]) == (401, "Unauthorized")


@on_loop
async def test_certificates_that_are_expired_early_foreign_or_of_a_server_are_refused(tmp_path: Path) -> None:
    """TLS refuses them with an alert. A 401 would do; anything else would not."""
    other = tmp_path / "other"
    other.mkdir()
    async with secure_server(tmp_path) as server:
        bad = {
            "expired": server.authority.issue_client("ada", (MASTERS,), NOW - timedelta(days=400)),
            "early": server.authority.issue_client("ada", (MASTERS,), NOW + timedelta(days=1)),
            "foreign": Authority.ensure(other, NOW).issue_client("ada", (MASTERS,), NOW),
            "server": server.authority.ensure_serving(tmp_path / "another.pem", ["127.0.0.1"], NOW),
        }
        codes = {name: (await server.whoami(certificate))[0] for name, certificate in bad.items()}
    assert set(codes.values()) <= {0, 401}, codes


@on_loop
async def test_a_token_is_its_user_and_groups_until_it_is_deleted(tmp_path: Path) -> None:
    async with secure_server(tmp_path) as server:
        await server.store_token(TOKEN, expires=NOW + timedelta(hours=1))
        code, found = await server.whoami(token=TOKEN)
        await server.service.delete(token_key("abcdefghij"))
        deleted, _ = await server.whoami(token=TOKEN)
    assert code == 201
    assert found["status"]["userInfo"] == {"username": "someone", "groups": ["readers", "system:authenticated"]}
    assert deleted == 401


@on_loop
async def test_other_tokens_are_refused(tmp_path: Path) -> None:
    async with secure_server(tmp_path) as server:
        await server.store_token(TOKEN)
        await server.store_token(expired := TOKEN.replace("abc", "exp"), expires=NOW - timedelta(seconds=1))
        await server.store_token(opaque := TOKEN.replace("abc", "opa"), type="Opaque")
        await server.store_token(damaged := TOKEN.replace("abc", "dam"), data={"sha256": "AA=="})
        wrong = (TOKEN[:-1] + ("a" if TOKEN[-1] != "a" else "b"), TOKEN.split(".")[0], "x", "ABC.def", "../a.b")
        codes = [(await server.whoami(token=each))[0] for each in (expired, opaque, damaged, *wrong)]
        good, _ = await server.whoami(token=TOKEN)
    assert codes == [401] * 8
    assert good == 201


@on_loop
async def test_a_token_whose_stored_digest_is_not_ascii_is_refused(tmp_path: Path) -> None:
    """A comparison that raised for it would make every request with this ID an internal error."""
    async with secure_server(tmp_path) as server:
        fields = {"sha256": "é" * 64, "user": "someone"}
        data = {name: base64.b64encode(text.encode()).decode() for name, text in fields.items()}
        await server.store_token(TOKEN, data=data)
        found = [await server.whoami(token=each) for each in (TOKEN, "abcdefghij.guessed")]
    assert [(code, body["reason"]) for code, body in found] == [(401, "Unauthorized")] * 2


@on_loop
async def test_the_store_never_has_a_token_itself(tmp_path: Path) -> None:
    async with secure_server(tmp_path) as server:
        await server.store_token(TOKEN)
        stored = await server.service.get(token_key("abcdefghij"))
        secret_part = TOKEN.split(".")[1].encode()
        assert secret_part not in stored.value
        found = parse_token_secret(stored.edit())
        assert found is not None
        assert found.matches(TOKEN)
        assert secret_part.decode() not in repr(found)


@on_loop
async def test_the_read_buffer_of_a_tls_connection_is_bounded(tmp_path: Path) -> None:
    """`bound_tls_buffers` sets a private attribute of asyncio. This fails when a version of Python ignores it."""
    before = sslproto.SSLProtocol.max_size
    bound_tls_buffers(dataclasses.replace(Limits(), http_tls_buffer_bytes=20_000))
    try:
        async with secure_server(tmp_path) as server:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            await eventually(lambda: bool(server.connections.open))
            (connection,) = server.connections.open
            assert connection._transport is not None
            protocol = connection._transport._ssl_protocol  # type: ignore[attr-defined]
            assert len(protocol.get_buffer(-1)) == 20_000
            writer.close()
    finally:
        sslproto.SSLProtocol.max_size = before


@on_loop
async def test_connections_in_their_handshake_count_as_open_ones(tmp_path: Path) -> None:
    limits = dataclasses.replace(Limits(), http_connections_max=3)
    async with secure_server(tmp_path, limits=limits) as server:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        _, admitted = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await eventually(lambda: len(server.connections.open) == 1)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        assert server.connections.refused.value == 1
        silent[0][1].write(b"no handshake at all")  # a handshake that fails makes room at once
        assert await asyncio.wait_for(silent[0][0].read(), 60) is not None
        await eventually(lambda: server.handshakes_failed == 1)
        _, another = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await eventually(lambda: len(server.connections.open) == 2)
        for writer in (silent[0][1], silent[1][1], admitted, another):
            writer.close()


@on_loop
async def test_a_client_that_never_shakes_hands_is_cut_off_in_time(tmp_path: Path) -> None:
    limits = dataclasses.replace(Limits(), http_handshake_s=0.05)
    async with secure_server(tmp_path, limits=limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
