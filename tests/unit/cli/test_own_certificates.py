"""A server renews its own certificates while it runs: new connections have the new ones, without a restart."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from tests.kit.loops import eventually, on_loop

from kedge.api.access import MASTERS
from kedge.cli.server import KUBECONFIG, ServerIdentity, ensure_identity, start_https
from kedge.client.http import read_kubeconfig
from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.http.certificates import ADMIN
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

LONG_AGO = timedelta(days=-366)
"""By a clock that is so far behind, a certificate is made that has ended for TLS, which has the real time."""


@dataclass
class Clock:
    """The wall clock of a server. TLS itself has the real time."""

    ahead: timedelta
    env: Env = field(init=False)

    def __post_init__(self) -> None:
        self.env = replace(system_env(limits=Limits(certificate_check_s=0.02)), now=self.now)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def left_s(self, name: str) -> float:
        sample = "kedge_server_certificate_left_seconds"
        return self.env.metrics.registry.get_sample_value(sample, {"certificate": name}) or 0.0


@asynccontextmanager
async def https_server(folder: Path, clock: Clock) -> AsyncIterator[tuple[ServerIdentity, int]]:
    """A server whose certificates are renewed, and its port."""
    identity = ensure_identity(folder, "127.0.0.1", clock.env)
    store = MemoryStore(clock.env)
    server = ApiServer(Service(store, clock.env), clock.env, agents_tls=identity.agents_tls)
    port = await start_https(server, identity, "127.0.0.1", 0)
    renewals = clock.env.spawn(identity.run_renewals(), name="renewals")
    try:
        yield identity, port
    finally:
        renewals.cancel()
        await server.stop()
        await store.close()


async def served(folder: Path, port: int) -> x509.Certificate:
    """The certificate that a new client sees, which it verifies."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        writer.close()


async def is_served(folder: Path, port: int) -> bool:
    try:
        await served(folder, port)
    except ssl.SSLCertVerificationError as error:
        if "certificate has expired" not in str(error):
            raise
        return False
    return True


async def shown_to_agents(folder: Path, identity: ServerIdentity) -> bytes:
    """The certificate that the server shows on a new connection, empty if its caller refuses it."""
    seen = asyncio.get_running_loop().create_future()
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    listening.load_cert_chain(folder / "serving.pem")
    listening.verify_mode = ssl.CERT_REQUIRED

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0, ssl=listening) as agent:
        port = agent.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=identity.agents_tls)
        writer.close()
        return await asyncio.wait_for(seen, 20)


@on_loop
async def test_a_server_that_ran_past_the_end_of_its_certificates_serves_new_ones_without_a_restart(
    tmp_path: Path,
) -> None:
    clock = Clock(LONG_AGO)
    async with https_server(tmp_path, clock) as (identity, port):
        assert not await is_served(tmp_path, port)
        before = (tmp_path / KUBECONFIG).read_text()
        assert clock.left_s("serving.pem") > 0, "by the clock of the server"
        clock.ahead = timedelta()
        await eventually(lambda: is_served(tmp_path, port))
        left = (await served(tmp_path, port)).not_valid_after_utc - datetime.now(UTC)
        assert left > timedelta(days=360)
        shown = x509.load_der_x509_certificate(await shown_to_agents(tmp_path, identity))
        assert shown.not_valid_after_utc - datetime.now(UTC) > timedelta(days=360)
        await eventually(lambda: (tmp_path / KUBECONFIG).read_text() != before)
        read_kubeconfig(tmp_path / KUBECONFIG)
        assert all(clock.left_s(name) > 360 * 86_400 for name in ("serving.pem", "agent-client.pem", KUBECONFIG))


@on_loop
async def test_a_certificate_is_renewed_thirty_days_before_its_end_and_not_earlier(tmp_path: Path) -> None:
    clock = Clock(timedelta(days=-300))
    async with https_server(tmp_path, clock) as (_, port):
        first = await served(tmp_path, port)
        clock.ahead += timedelta(days=334)
        await asyncio.sleep(0.2)
        assert await served(tmp_path, port) == first
        clock.ahead = timedelta(days=-300 + 336)
        await asyncio.sleep(0.2)
        assert clock.left_s("serving.pem") > 360 * 86_400


@on_loop
async def test_a_damaged_file_does_not_hold_up_the_other_certificates(tmp_path: Path) -> None:
    clock = Clock(timedelta())
    async with https_server(tmp_path, clock) as (_, port):
        first = await served(tmp_path, port)
        (tmp_path / "agent-client.pem").write_text("damaged")
        (tmp_path / "serving.pem").unlink()

        async def is_another() -> bool:
            return await served(tmp_path, port) != first

        await eventually(is_another)


@on_loop
async def test_a_certificate_file_that_is_damaged_is_reported_and_the_server_serves_on(tmp_path: Path) -> None:
    clock = Clock(timedelta())
    async with https_server(tmp_path, clock) as (_, port):
        first = await served(tmp_path, port)
        (tmp_path / "serving.pem").write_text("damaged")
        await asyncio.sleep(0.2)
        assert await served(tmp_path, port) == first
        (tmp_path / "serving.pem").unlink()

        async def is_another() -> bool:
            return await served(tmp_path, port) != first

        await eventually(is_another)


@pytest.mark.parametrize("kept", ["removed", "edited", "of another user"])
def test_an_administrators_kubeconfig_that_is_not_the_servers_is_left_alone(tmp_path: Path, kept: str) -> None:
    clock = Clock(timedelta())
    identity = ensure_identity(tmp_path, "127.0.0.1", clock.env)
    path = tmp_path / KUBECONFIG
    user, groups = (ADMIN, (MASTERS,)) if kept != "of another user" else ("ada", ())
    identity.authority.ensure_kubeconfig(path, "https://127.0.0.1:1", user, groups, clock.now())
    if kept == "removed":
        path.unlink()
    elif kept == "edited":
        path.write_text("users: []\n")
    text = path.read_text() if path.exists() else ""
    clock.ahead = timedelta(days=400)
    identity.certificates.renew(path)
    assert (path.read_text() if path.exists() else "") == text


def test_a_renewed_kubeconfig_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    clock = Clock(timedelta())
    identity = ensure_identity(tmp_path, "127.0.0.1", clock.env)
    path = tmp_path / KUBECONFIG
    identity.authority.ensure_kubeconfig(path, "https://127.0.0.1:1", ADMIN, (MASTERS,), clock.now())
    before = yaml.safe_load(path.read_text())
    before["contexts"][0]["context"]["namespace"] = "team-a"
    path.write_text(yaml.safe_dump(before))
    identity.certificates.renew(path)
    assert yaml.safe_load(path.read_text()) == before
    clock.ahead = timedelta(days=340)
    identity.certificates.renew(path)
    after = yaml.safe_load(path.read_text())
    assert after.pop("users") != before.pop("users")
    assert after == before
    assert path.stat().st_mode & 0o777 == 0o600
