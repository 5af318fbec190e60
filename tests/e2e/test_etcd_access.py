"""etcd with certificates and with users: what is right works, and an error names what is wrong."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.etcd_server import EtcdServer, TlsPaths, etcd_server, etcdctl, free_port, wheel_etcd
from tests.kit.api_server import running_server
from tests.tools import missing_tool

from kedge.env import system_env
from kedge.errors import Misconfigured, Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.http.certificates import Authority
from kedge.store.contract import Put
from kedge.store.etcd import EtcdLogin, EtcdStore, EtcdTls

HASTY = replace(Limits(), store_request_s=1.0)
NOW = datetime.now(UTC)
KEY = Key("Thing.access", "ns", "a")
ROOT = ("--user", "root:root-password")


@dataclass
class Pki:
    """An authority with a server's and a client's certificate, as files."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.authority = Authority.ensure(self.folder, NOW)
        self.ca = self.folder / "ca.crt"

    def serving(self, *hosts: str, made: datetime = NOW) -> Path:
        path = self.folder / f"serving-{'-'.join(hosts)}-{made:%j}.pem"
        self.authority.ensure_serving(path, list(hosts), made)
        return path

    def client(self, made: datetime = NOW) -> TlsPaths:
        issued = self.authority.issue_client("kedge", (), made)
        certificate, key = self.folder / f"client-{made:%j}.crt", self.folder / f"client-{made:%j}.key"
        certificate.write_bytes(issued.certificate_pem)
        key.write_bytes(issued.key_pem)
        return TlsPaths(self.ca, certificate, key)


def etcd() -> str:
    return wheel_etcd() or missing_tool("etcd", install="make venv")


@contextmanager
def tls_server(pki: Pki, *hosts: str, made: datetime = NOW) -> Iterator[EtcdServer]:
    serving = str(pki.serving(*hosts, made=made))
    options = ("--cert-file", serving, "--key-file", serving, "--client-cert-auth", "--trusted-ca-file", str(pki.ca))
    with etcd_server(etcd(), "--unsafe-no-fsync", *options, tls=pki.client()) as server:
        yield server


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki") / "theirs")


@pytest.fixture(scope="module")
def secure(pki: Pki) -> Iterator[EtcdServer]:
    with tls_server(pki, "127.0.0.1") as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[EtcdServer]:
    with etcd_server(etcd(), "--unsafe-no-fsync") as server:
        yield server


@pytest.fixture
def guarded() -> Iterator[EtcdServer]:
    """A server with a user for the prefix /kedge; authentication is still off. Tokens end 2 s after their last use."""
    with etcd_server(etcd(), "--unsafe-no-fsync", "--auth-token-ttl", "2") as server:
        etcdctl(server, "user", "add", *("root:root-password",))
        etcdctl(server, "user", "grant-role", "root", "root")
        etcdctl(server, "role", "add", "kedge")
        etcdctl(server, "role", "grant-permission", "kedge", "readwrite", "/kedge/", "--prefix")
        etcdctl(server, "user", "add", "kedge:right")
        etcdctl(server, "user", "grant-role", "kedge", "kedge")
        yield server


@asynccontextmanager
async def opened(endpoint: str, **options: Any) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([endpoint], system_env(limits=HASTY), **options)
    try:
        yield store
    finally:
        await store.close()


async def check_usable(store: EtcdStore, value: bytes) -> None:
    made = await store.commit([], [Put(KEY, value)])
    watch = await store.watch(KEY.kind, after=made - 1)
    received: list[bytes] = []
    async with asyncio.timeout(20):
        while watch.revision < made:
            watch.request_progress()
            batch = await watch.__anext__()
            received.extend(change.entry.value for change in batch.changes if change.entry is not None)
    assert received == [value]
    watch.close()


def error_of(endpoint: str, **options: Any) -> str:
    """The message of the error that is no reason to try again."""

    async def run() -> str:
        with pytest.raises(Misconfigured) as raised:
            async with opened(endpoint, **options):
                pass
        return str(raised.value)

    return asyncio.run(run())


def test_a_client_certificate_of_the_authority_is_accepted(secure: EtcdServer, pki: Pki) -> None:
    async def run() -> None:
        async with opened(secure.endpoint, tls=EtcdTls.read(*pki.client())) as store:
            await check_usable(store, b"1")

    asyncio.run(run())


def test_each_mistake_with_certificates_is_named(
    secure: EtcdServer, plain: EtcdServer, pki: Pki, stranger: Pki
) -> None:
    ours, theirs = pki.client(), stranger.client()
    old = pki.client(made=NOW - timedelta(days=800))
    right = EtcdTls.read(*ours)
    assert "authority: etcd's certificate is not from" in error_of(
        secure.endpoint, tls=EtcdTls.read(theirs.ca, *ours[1:])
    )
    assert "certificate: etcd rejects the client certificate" in error_of(
        secure.endpoint, tls=EtcdTls.read(ours.ca, *theirs[1:])
    )
    assert "certificate: etcd rejects the client certificate" in error_of(
        secure.endpoint, tls=EtcdTls.read(ours.ca, *old[1:])
    )
    assert "certificate: etcd requires a client certificate" in error_of(secure.endpoint, tls=EtcdTls.read(ours.ca))
    assert "authority: etcd uses TLS there" in error_of(secure.endpoint)
    assert "authority: etcd uses no TLS there" in error_of(plain.endpoint, tls=right)
    assert "is for a connection with TLS" in error_of(f"https://{plain.endpoint}")


def test_a_certificate_for_another_host_or_time_is_named(pki: Pki) -> None:
    right = EtcdTls.read(*pki.client())
    with tls_server(pki, "etcd.example.com") as elsewhere:
        assert "certificate: etcd's certificate is for another host" in error_of(elsewhere.endpoint, tls=right)
    with tls_server(pki, "127.0.0.1", made=NOW - timedelta(days=800)) as expired:
        assert "certificate: etcd's certificate is not valid now" in error_of(expired.endpoint, tls=right)


def test_garbage_in_files_is_named_with_the_file(pki: Pki, stranger: Pki, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    ours = pki.client()
    for files, words in [
        ((garbage,), f"authority {garbage} is not a certificate"),
        ((ours.ca, garbage, ours.key), f"certificate {garbage} is not a certificate"),
        ((ours.ca, ours.certificate, garbage), f"key {garbage} is not a private key"),
        ((ours.ca, ours.certificate, stranger.client().key), "is not the key of"),
        ((ours.ca, ours.certificate), "there is a certificate but no key"),
        ((tmp_path / "absent",), "absent cannot be read"),
    ]:
        with pytest.raises(Misconfigured, match=re.escape(words)):
            EtcdTls.read(*files)


@pytest.mark.parametrize("endpoints", [[], [""], ["host:port"], ["ftp://a:1"], ["a:0"], [":2379"]])
def test_something_that_is_no_address_is_refused_at_once(endpoints: list[str]) -> None:
    with pytest.raises(Misconfigured, match="etcd: "):
        asyncio.run(EtcdStore.open(endpoints, system_env()))


def test_an_address_where_nothing_listens_may_come_up_later() -> None:
    with pytest.raises(Unavailable, match=r"address: .*is etcd running"):
        asyncio.run(EtcdStore.open([f"127.0.0.1:{free_port()}"], system_env(limits=HASTY)))


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"etcdserver":"2.3.8"}', "version: etcd 2.3.8 is too old"), (b"<html>", "address: the program there answers")],
)
def test_another_program_and_an_old_etcd_are_named(body: bytes, words: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1000)).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises((Misconfigured, Unavailable), match=words):
                await EtcdStore.open([f"127.0.0.1:{port}"], system_env(limits=HASTY))

    asyncio.run(run())


def test_a_user_may_use_its_prefix_only(guarded: EtcdServer) -> None:
    etcdctl(guarded, "auth", "enable")

    async def run() -> None:
        async with opened(guarded.endpoint, login=EtcdLogin("kedge", "right")) as store:
            await check_usable(store, b"1")

    asyncio.run(run())
    assert "credentials" in error_of(guarded.endpoint)
    assert "requires a user and password" in error_of(guarded.endpoint)
    assert "rejects the user or the password" in error_of(guarded.endpoint, login=EtcdLogin("kedge", "wrong"))
    assert "rejects the user or the password" in error_of(guarded.endpoint, login=EtcdLogin("no-such-user", "right"))
    elsewhere = error_of(guarded.endpoint, login=EtcdLogin("kedge", "right"), prefix="/other")
    assert "may not read and write the prefix" in elsewhere


def test_a_token_that_has_ended_is_replaced_and_nothing_is_lost(guarded: EtcdServer) -> None:
    """Tokens end unused, and all of them whenever users change."""
    etcdctl(guarded, "auth", "enable")

    async def run() -> None:
        async with opened(guarded.endpoint, login=EtcdLogin("kedge", "right"), compactor=False) as store:
            for number in range(3):
                await asyncio.to_thread(etcdctl, guarded, "user", "add", f"other-{number}:x", *ROOT)
                await check_usable(store, b"%d" % number)
                store._transport._token = "no-such-token.1"
                await check_usable(store, b"after %d" % number)

    asyncio.run(run())


def test_authentication_that_is_switched_on_later(guarded: EtcdServer) -> None:
    """A store with a user goes on; one without gets an error that is not worth a retry."""

    async def run() -> None:
        async with (
            opened(guarded.endpoint, login=EtcdLogin("kedge", "right")) as known,
            opened(guarded.endpoint) as unknown,
        ):
            await check_usable(known, b"before")
            await check_usable(unknown, b"before, too")
            await asyncio.to_thread(etcdctl, guarded, "auth", "enable")
            await check_usable(known, b"after")
            attempts: list[Callable[[], Any]] = [
                lambda: unknown.commit([], [Put(KEY, b"?")]),
                lambda: unknown.get([KEY]),
                lambda: unknown.list(KEY.kind),
            ]
            for attempt in attempts:
                with pytest.raises(Misconfigured, match="credentials"):
                    await attempt()
            assert (await known.get([KEY])).entries[0].value == b"after"  # type: ignore[union-attr]

    asyncio.run(run())


def test_the_server_runs_on_etcd_with_certificates(secure: EtcdServer, pki: Pki, tmp_path: Path) -> None:
    ca, certificate, key = map(str, pki.client())
    options = ("--store", f"etcd://{secure.endpoint}", "--etcd-cafile", ca, "--etcd-prefix", "/served")
    files = ("--etcd-certfile", certificate, "--etcd-keyfile", key)
    with running_server(tmp_path / "state", *options, *files) as server:
        server.kubectl("create", "configmap", "kept")
        server.stop()
        server.start()
        assert "configmap/kept" in server.kubectl("get", "configmaps", "-o", "name")


def test_the_server_runs_on_etcd_with_a_user_and_names_a_wrong_password(guarded: EtcdServer, tmp_path: Path) -> None:
    etcdctl(guarded, "auth", "enable")
    password = tmp_path / "password"
    password.write_text("right\n")
    options = ("--store", f"etcd://{guarded.endpoint}", "--etcd-user", "kedge", "--etcd-password-file", str(password))
    with running_server(tmp_path / "state", *options) as server:
        server.kubectl("create", "configmap", "kept")
    password.write_text("wrong\n")
    command = [sys.executable, "-m", "kedge", "server", "--state", str(tmp_path / "state"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Error: etcd: credentials" in done.stderr
    assert "wrong" not in done.stderr
