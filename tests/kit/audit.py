"""A server that keeps an audit log, in this process over loopback sockets, and its entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.access import GuardedApi, NamedAuthenticator, add_defaults
from tests.objects import NAMESPACE

from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.audit import (
    AuditEvent,
    AuditGap,
    AuditLog,
    Auditor,
    AuditPolicy,
    AuditQuery,
    AuditReader,
    parse_policy,
)
from kedge.server.http.api import ApiHandler
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

EVERYTHING = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse}]\n"
METADATA = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"


class AuditedApi(GuardedApi):
    """A guarded server with an audit log in `folder`."""

    def __init__(
        self, service: Service, port: int, handler: ApiHandler, folder: Path, log: AuditLog, auditor: Auditor, env: Env
    ) -> None:
        super().__init__(service, port, handler)
        self.folder = folder
        self.log = log
        self.auditor = auditor
        self.env = env


@asynccontextmanager
async def audited_api(
    folder: Path, policy: AuditPolicy | str = EVERYTHING, *, strict: bool = False, limits: Limits | None = None
) -> AsyncIterator[AuditedApi]:
    """At the end the log is closed, so every entry is on disk."""
    env = system_env(limits=limits)
    store = MemoryStore(env)
    service = Service(store, env)
    await add_defaults(service)
    await service.create(NAMESPACE, {"metadata": {"name": "default"}})
    log = AuditLog(folder, env)
    log.start()
    parsed = parse_policy(policy, "policy") if isinstance(policy, str) else policy
    auditor = Auditor(parsed, log, env, strict=strict)
    server = ApiServer(service, env, authenticator=NamedAuthenticator(), auditor=auditor)
    port = await server.start("127.0.0.1", 0, None)
    try:
        yield AuditedApi(service, port, server.handler, folder, log, auditor, env)
    finally:
        await server.stop()
        await log.close()
        await store.close()


def entries(folder: Path, **conditions: Any) -> list[AuditEvent]:
    reader = AuditReader(folder)
    found = list(reader.read(AuditQuery(**conditions)))
    assert reader.unreadable == 0
    assert not any(isinstance(each, AuditGap) for each in found)
    return [each for each in found if isinstance(each, AuditEvent)]


def text_of(folder: Path) -> str:
    """All files of the log, as they are on disk."""
    return "".join(path.read_text() for path in sorted(folder.iterdir()))
