"""Runs hostile calls through `kedge.client`: in process and over HTTP, each on a server of its own.

A fault is any exception but a declared operating error with a message that can be encoded, and a write that failed and
still changed something.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fuzz.client_calls import calls, request_of
from tests.kit.api_server import TrustingAuthenticator
from tests.objects import config_map, deployment, node, pod

from kedge.api.kinds import KINDS
from kedge.api.requests import OpenWatch
from kedge.api.wellknown import RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.client.contract import Client, Transport
from kedge.client.direct import DirectTransport
from kedge.client.http import HttpTransport, ServerAddress
from kedge.env import system_env
from kedge.errors import OperatingError, OutcomeUnknown, to_status
from kedge.keys import Revision
from kedge.limits import Limits
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

CORPUS = Path(__file__).parent / "corpus"
TRANSPORTS = ("direct", "http")
LIMITS = replace(
    Limits(), client_attempts_max=1, breaker_failures_max=1_000_000, watch_future_wait_s=0.0, watch_progress_s=0.01
)
HANG_S = 20.0


def client_corpus() -> list[tuple[str, dict[str, Any]]]:
    """Every call that ever broke something."""
    return [(path.name, ast.literal_eval(path.read_text("utf-8"))) for path in sorted(CORPUS.glob("*.call"))]


def keep(call: dict[str, Any]) -> Path:
    text = ascii(call) + "\n"
    path = CORPUS / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.call"
    path.write_text(text.replace("inf", "1e999"), "utf-8")
    return path


@dataclass
class ClientTally:
    """The outcomes of calls, by the name of the error; `ok` without one."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    broken: list[dict[str, Any]] = field(default_factory=list)


class FuzzedClient:
    """One client, with the store behind it to see what a call has written."""

    def __init__(self, transport: Transport, store: MemoryStore) -> None:
        self._client = Client(transport, system_env(limits=LIMITS), component="fuzz")
        self._store = store
        self.tally = ClientTally()

    async def prepare(self) -> None:
        """Objects that calls name."""
        manifests: tuple[dict[str, Any], ...] = (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}},
            node(), pod(), pod("a"), config_map("a"), deployment("a"),
        )  # fmt: skip
        for body in manifests:
            namespace = "" if body["kind"] in ("Namespace", "Node") else "default"
            await self._client.create(KINDS.of_api(body["apiVersion"], body["kind"]), body, namespace=namespace)

    async def send(self, call: dict[str, Any]) -> None:
        """Send one call, and note a fault."""
        before = await self._store.revision()
        request = request_of(call)
        try:
            async with asyncio.timeout(HANG_S):
                if isinstance(request, OpenWatch):
                    await self._watch(request)
                else:
                    await self._client.send(request)
            outcome = "ok"
        except OperatingError as error:
            outcome = type(error).__name__
            self._check_error(call, error)
            if not isinstance(error, OutcomeUnknown) and call["verb"] != "delete_collection":
                self._check_unwritten(call, before)
        except Exception as error:  # noqa: BLE001  every other exception is the fault that is sought
            outcome = "fault"
            self._fault(call, f"raised {type(error).__name__}: {ascii(error)[:300]}")
        self.tally.outcomes[outcome] += 1

    async def _watch(self, request: OpenWatch) -> None:
        events = await self._client.open_watch(request)
        async with aclosing(events):
            for _ in range(3):
                try:
                    await asyncio.wait_for(anext(events), 0.05)
                except (StopAsyncIteration, TimeoutError):
                    return

    def _check_error(self, call: dict[str, Any], error: OperatingError) -> None:
        if type(error) is OperatingError:
            self._fault(call, f"an error of no declared type: {ascii(error.message)[:300]}")
        try:
            error.message.encode()
            msgspec.json.encode(to_status(error))
        except (UnicodeEncodeError, TypeError, ValueError) as unencodable:
            self._fault(call, f"{type(error).__name__} with a message that is not Unicode: {unencodable}")

    def _check_unwritten(self, call: dict[str, Any], before: Revision) -> None:
        """The first count of a quota is a commit of its own; nothing else may be written by a call that failed."""
        changed = {entry.key.kind for entry in self._store.entries() if entry.modified > before}
        if changed - {RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND}:
            self._fault(call, f"it failed, and wrote {changed}")

    def _fault(self, call: dict[str, Any], words: str) -> None:
        self.tally.faults.append(f"{call['verb']} {words}: {ascii(call)[:600]}")
        self.tally.broken.append(call)


@asynccontextmanager
async def fuzzed_client(kind: str) -> AsyncIterator[FuzzedClient]:
    """A client on a server of its own."""
    env = system_env(limits=LIMITS)
    store = MemoryStore(env)
    service = Service(store, env)
    if kind == "direct":
        client = FuzzedClient(DirectTransport(service), store)
        await client.prepare()
        yield client
    else:
        server = ApiServer(service, env, authenticator=TrustingAuthenticator())
        port = await server.start("127.0.0.1", 0, None)
        transport = HttpTransport(ServerAddress("127.0.0.1", port))
        try:
            client = FuzzedClient(transport, store)
            await client.prepare()
            yield client
        finally:
            await transport.close()
            await server.stop()
    await store.close()


def fuzz_client(kind: str, examples: int, seed_number: int) -> ClientTally:
    """Send so many drawn calls to one server, after another until the first faults."""
    with asyncio.Runner() as runner:
        opened = fuzzed_client(kind)
        client = runner.run(opened.__aenter__())

        @seed(seed_number)
        @settings(
            max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )  # fmt: skip
        @given(call=calls)
        def send(call: dict[str, Any]) -> None:
            if len(client.tally.faults) < 20:
                runner.run(client.send(call))

        send()
        runner.run(opened.__aexit__(None, None, None))
    return client.tally
