"""The server of the fuzzers in the process of a test: with the page, incidents, debug pages and an audit of bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.identities import FuzzAuthenticator
from tests.fuzz.peer import Peer
from tests.fuzz.runs import open_page, prepare
from tests.kit.audit import EVERYTHING

from kedge.cli.debug_pages import add_debug_pages
from kedge.cli.live_page import LivePage
from kedge.cli.live_records import PlaneRecords
from kedge.cli.wiring import ControlPlane
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.server.audit import AuditLog, Auditor, parse_policy
from kedge.server.http.server import ApiServer
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.store.memory import MemoryStore
from kedge.ui.page_mount import PageMount


@asynccontextmanager
async def fuzzed_api() -> AsyncIterator[tuple[ApiServer, Peer]]:
    """A server, and a peer with a session of the page that has made the objects of `prepare`."""
    with TemporaryDirectory() as name:
        folder, env = Path(name), system_env()
        store = MemoryStore(env)
        service = Service(store, env)
        log = AuditLog(folder / "audit", env)
        log.start()
        auditor = Auditor(parse_policy(EVERYTHING, "policy"), log, env)
        server = ApiServer(service, env, authenticator=FuzzAuthenticator(), auditor=auditor)
        plane = ControlPlane(DirectTransport(service), env, decisions=folder / "decisions")
        handler = server.handler
        handler.incidents = IncidentFolder(folder / "incidents", env)
        handler.authority_pem = "a certificate"
        add_debug_pages(handler.add_page, plane, env, lambda: store.statistics().revision)
        client = Client(DirectTransport(service), env, component="server")
        page = LivePage(client, PlaneRecords(plane, env), service, env, "fuzz")
        handler.page = PageMount(page, env)
        port = await server.start("127.0.0.1", 0, None)
        peer = Peer("127.0.0.1", port)
        try:
            await prepare(peer)
            await open_page(peer)
            yield server, peer
        finally:
            await server.stop()
            await log.close()
            await store.close()
