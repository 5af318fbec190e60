"""A real API server for other programs' tests: HTTPS on loopback, a store of its own for each test.

`pytest_plugin` offers it as the fixture `kedge_server`. It runs on a thread, so that blocking clients work;
certificates are made once for a run of pytest. It has no controllers: the tested program is the only one that acts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kedge.api.access import MASTERS
from kedge.api.kinds import KINDS
from kedge.api.wellknown import NAMESPACE_KIND, SYSTEM_NAMESPACES
from kedge.env import Env, system_env
from kedge.server.http.certificates import ADMIN, Authority
from kedge.server.http.server import ApiServer, TlsFiles, tls_context
from kedge.server.service import Service
from kedge.store import Store

STORES = ("memory", "sqlite")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The server of one test."""

    url: str
    kubeconfig: Path
    """An administrator's; the server's address, authority, certificate and key are in it."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a client in a process of its own."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}


class ServerThread:
    """The event loop of every server of a run of pytest, and their certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = system_env()
        now = self._env.now()
        self._authority = Authority.ensure(folder, now)
        self._authority.ensure_serving(folder / "serving.pem", ["127.0.0.1", "localhost"], now)
        self._tls = tls_context(TlsFiles(serving=folder / "serving.pem", authority=folder / "ca.crt"))
        self._kubeconfig = folder / "admin.kubeconfig"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kedge_server", daemon=True)
        self._thread.start()

    @contextmanager
    def server(self, store: str, folder: Path) -> Iterator[RunningServer]:
        """A server on an empty store, until the end of the block."""
        env = system_env()
        opened = self._run(_open(store, folder, env))
        running, port = self._run(self._start(opened, env))
        url = f"https://127.0.0.1:{port}"
        self._authority.ensure_kubeconfig(self._kubeconfig, url, ADMIN, (MASTERS,), env.now())
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_bytes(self._kubeconfig.read_bytes())
        kubeconfig.chmod(0o600)
        try:
            yield RunningServer(url, kubeconfig)
        finally:
            self._run(_stop(running, opened))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, store: Store, env: Env) -> tuple[ApiServer, int]:
        service = Service(store, env)
        for name in ("default", *SYSTEM_NAMESPACES):
            await service.create(KINDS.of_key_kind(NAMESPACE_KIND), {"metadata": {"name": name}})
        server = ApiServer(service, env)
        return server, await server.start("127.0.0.1", 0, self._tls)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


async def _open(store: str, folder: Path, env: Env) -> Store:
    if store == "memory":
        from kedge.store.memory import MemoryStore

        return MemoryStore(env)
    if store == "sqlite":
        from kedge.store.sqlite import SqliteStore

        return await SqliteStore.open(folder / "kedge.db", env)
    raise ValueError(f"kedge_server has no store {store!r}: use one of {', '.join(STORES)}")


async def _stop(server: ApiServer, store: Store) -> None:
    server.connections.abort()  # a test has ended: nothing is worth a drain
    await server.stop()
    await store.close()
