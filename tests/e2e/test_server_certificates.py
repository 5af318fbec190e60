"""Servers as processes, whose wall clock is moved: they renew their own certificates without a restart."""

from __future__ import annotations

import ssl
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from tests.e2e.incident_clusters import build_clock_shim
from tests.e2e.up_workload import UpProcess, down_nodes, until
from tests.kit.api_server import ServerProcess

DAY_S = 86_400


def served(server: ServerProcess) -> x509.Certificate:
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port)), timeout=20).encode())


def days_left(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


@pytest.mark.parametrize("kind", [ServerProcess, UpProcess], ids=["server", "up"])
def test_a_server_that_runs_past_the_day_of_renewal_serves_a_new_certificate_without_a_restart(
    kind: type[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, config = tmp_path / "clock", tmp_path / "config.yaml"
    config.write_text("limits: {certificate_check_s: 0.2}\n")
    clock.write_bytes(struct.pack("=q", -340 * DAY_S * 10**9))
    shim = build_clock_shim(tmp_path)
    options = ("--nodes", "1") if kind is UpProcess else ()
    server = kind(tmp_path / "state", "--config", str(config), *options)
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(shim))
        patched.setenv("KEDGE_CLOCK_STEP", str(clock))
        server.start()
    try:
        assert 24 < days_left(served(server)) < 26
        client = (server.state / "agent-client.pem").read_bytes()
        admin = server.kubeconfig.read_bytes()
        with clock.open("r+b") as file:
            file.write(struct.pack("=q", 0))
        until(lambda: days_left(served(server)) > 360, "the server serves a new certificate", 30)
        until(lambda: (server.state / "agent-client.pem").read_bytes() != client, "the one for agents is new", 30)
        until(lambda: server.kubeconfig.read_bytes() != admin, "the administrator's is new", 30)
        server.kubectl("get", "namespaces")
        assert server.is_running
    finally:
        server.end()
        if kind is UpProcess:
            down_nodes(server)
