"""A client on a transport that fails on request."""

from __future__ import annotations

import asyncio

from tests.objects import World, make_world

from kedge.api.requests import Get, Reply, Request
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.errors import OperatingError, OutcomeUnknown
from kedge.limits import Limits

QUICK = Limits(client_backoff_s=0.0, client_backoff_s_max=0.0, breaker_failures_max=100)


class FlakyTransport(DirectTransport):
    """A transport to a real service that raises given errors: before a request arrives, or after it was carried out."""

    def __init__(self, world: World) -> None:
        super().__init__(world.service)
        self.before: list[OperatingError | None] = []
        self.after: list[OperatingError | None] = []
        self.calls: list[str] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self.gate: asyncio.Event | None = None

    async def send(self, request: Request[Reply]) -> Reply:
        self.calls.append(request.label)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.before and (error := self.before.pop(0)) is not None:
                raise error
            result = await super().send(request)
            if self.after and not isinstance(request, Get) and (error := self.after.pop(0)) is not None:
                raise error
            return result
        finally:
            self.in_flight -= 1


async def flaky(limits: Limits = QUICK) -> tuple[World, FlakyTransport, Client]:
    world = await make_world(limits=limits)
    transport = FlakyTransport(world)
    return world, transport, Client(transport, world.env, component="test")


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("no reply")
