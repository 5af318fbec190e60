"""The fixture of a check: two transports to one service, and objects to send through them.

Nothing here depends on a transport or on pytest: a check fails with an `AssertionError` that explains the failure.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent, WriteOptions
from kedge.api.wellknown import CONFIG_MAP_KIND, DEPLOYMENT_KIND, LEASE_KIND, NAMESPACE_KIND, NODE_KIND, POD_KIND
from kedge.client.contract import Client, Transport
from kedge.env import Env
from kedge.errors import AlreadyExists
from kedge.expectations import within
from kedge.keys import Key, Origin

NAMESPACE: Final = "conformance"
WAIT_S = 30.0
"""How long a check waits for an expected event. Far more than any sound transport needs."""
CONFIG_MAP, DEPLOYMENT, LEASE, NODE, POD, _NAMESPACE_KIND = (
    KINDS.of_key_kind(name)
    for name in (CONFIG_MAP_KIND, DEPLOYMENT_KIND, LEASE_KIND, NODE_KIND, POD_KIND, NAMESPACE_KIND)
)


@dataclass(frozen=True, slots=True)
class ClientSubject:
    """The transport under test, as one check sees it. Each check gets a service of its own."""

    transport: Transport
    other: Transport
    """A second one, to the same service: another process."""
    env: Env
    compact: Callable[[], Awaitable[None]]
    """Forget the past of the store behind the service, up to now."""
    caller: str = ""
    """The user as which the server authenticates the transport; empty in process."""
    groups: tuple[str, ...] = ()
    """The groups of that user."""

    @property
    def client(self) -> Client:
        return Client(self.transport, self.env, component="conformance")

    async def prepare(self) -> None:
        """Make the namespace that the checks use."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        try:
            await self.client.create(_NAMESPACE_KIND, body)
        except AlreadyExists:
            return

    async def config_map(self, name: str, *, options: WriteOptions | None = None, **data: str) -> Object:
        written = await self.client.create(
            CONFIG_MAP, config_map(name, **data), namespace=NAMESPACE, options=options or WriteOptions()
        )
        return written.object

    async def node(self, name: str = "n1", cpu: str = "4") -> Object:
        amounts = {"cpu": cpu, "memory": "4Gi", "pods": "10"}
        status = {"capacity": amounts, "allocatable": amounts}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
        return (await self.client.create(NODE, body)).object

    async def pod(self, name: str, cpu: str = "1", **labels: str) -> Object:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        metadata = {"name": name, "labels": labels}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        return (await self.client.create(POD, body, namespace=NAMESPACE)).object


MakeSubject = Callable[[], AbstractAsyncContextManager[ClientSubject]]
"""Starts a service on an empty store, and transports to it."""


class InterposedTransport:
    """A transport that passes every request on. Checks change `send` to record, lose or refuse."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.kinds = transport.kinds
        self.repeats_safely = transport.repeats_safely
        self.one_history = transport.one_history
        self.sent: list[Request[Any]] = []

    async def send(self, request: Request[Reply]) -> Reply:
        self.sent.append(request)
        return await self._transport.send(request)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        self.sent.append(request)
        return self._transport.open_watch(request)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def key(name: str) -> Key:
    return Key(CONFIG_MAP_KIND, NAMESPACE, name)


def by(operation: str, decision: str = "") -> WriteOptions:
    """Options with an operation id."""
    return WriteOptions(origin=Origin(operation, decision))


async def next_event(events: AsyncGenerator[WatchEvent, None]) -> WatchEvent:
    """The next event that is no bookmark."""
    async with within(WAIT_S, "an event of a watch"):
        while True:
            event = await anext(events)
            if event.object is not None:
                return event
