"""A real API server for tests: in this process over loopback sockets, or `kedge server` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

from tests.tools import need_kubectl

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import Exchange, Handler, HttpRequest
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

START_S = 60.0
"""How long a process may take to serve: other tests share the machine."""


class TrustingAuthenticator(Authenticator):
    """Takes every caller for an administrator: for tests of what comes after authentication."""

    def caller(self, request: HttpRequest) -> Caller:
        del request
        return Caller("test", (MASTERS, AUTHENTICATED))


class Gate:
    """A handler that holds requests back, and notes their paths."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.open = asyncio.Event()
        self.open.set()
        self.seen: list[bytes] = []
        self.cut = b""
        """Requests of this path are handled, and their connection is cut before the reply."""

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        del request, exchange
        return False

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        self.seen.append(request.path)
        await self.open.wait()
        if request.path == self.cut:
            exchange.connection.abort()
        await self._handler(request, exchange)


@asynccontextmanager
async def local_api(
    *, limits: Limits | None = None, authenticator: Authenticator | None = None
) -> AsyncIterator[tuple[ApiServer, int]]:
    """A server on the memory store, without TLS, on a free loopback port."""
    env: Env = system_env(limits=limits)
    store = MemoryStore(env)
    server = ApiServer(Service(store, env), env, authenticator=authenticator or TrustingAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    try:
        yield server, port
    finally:
        await server.stop()
        await store.close()


async def exchange(port: int, *sent: bytes, end: bool = True, address: str = "") -> bytes:
    """Send bytes on one connection and return everything that comes back until the server closes it."""
    local = (address, 0) if address else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    for each in sent:
        writer.write(each)
        await writer.drain()
    if end:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


class ServerProcess:
    """`kedge server`, started and waited for."""

    verb = "server"

    def __init__(self, state: Path, *options: str) -> None:
        self.state = state
        self.options = options
        self._log = state.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def is_running(self) -> bool:
        """Whether the process that was started last has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def start(self, listen: str = "127.0.0.1:0") -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kedge",
                    self.verb,
                    "--state",
                    str(self.state),
                    "--listen",
                    listen,
                    *self.options,
                ],
                stderr=log,
                stdout=log,
            )
        deadline = time.monotonic() + START_S
        while "serving https://" not in self.log:
            assert self._process.poll() is None, f"kedge server ended: {self.log}"
            assert time.monotonic() < deadline, f"kedge server did not serve in {START_S} s: {self.log}"
            time.sleep(0.05)
        self.url = self.log.split("serving ")[-1].split()[0]

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.terminate()
        return self.wait()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def end(self) -> None:
        if self.is_running:
            self.kill()

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment of a client process of this server."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.state)}

    @contextmanager
    def started(self, *command: str, stdout: IO[bytes] | int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A client process beside the test; ended with it."""
        process = subprocess.Popen(command, env=self.client_environment, stdout=stdout)
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = 60.0) -> str:
        """Run kubectl and return what it prints; both streams, when it fails. Without kubectl the test is skipped."""
        done = subprocess.run(
            [need_kubectl(), *arguments],
            env=self.client_environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}\n{self.log}"
            return done.stdout
        return done.stdout + done.stderr

    def whoami(self, token: str) -> str:
        """The text that kubectl prints about the caller with this token and no certificate."""
        bare = self.state / "bare.kubeconfig"
        bare.write_text("")
        authority = ("--certificate-authority", str(self.state / "ca.crt"))
        plain = ("--kubeconfig", str(bare), "--server", self.url, *authority)
        return self.kubectl("auth", "whoami", "--token", token, *plain, check=False)


@contextmanager
def running_server(state: Path, *options: str) -> Iterator[ServerProcess]:
    server = ServerProcess(state, *options)
    server.start()
    try:
        yield server
    finally:
        server.end()
