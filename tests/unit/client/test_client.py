"""The client: bounds, retries, the breaker, and unknown outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.kit.client import QUICK, FlakyTransport, flaky, lost
from tests.objects import CONFIG_MAP, asynchronous, config_map

from kedge.api.requests import Patch, Reply, Request, WriteOptions
from kedge.client.contract import BreakerState
from kedge.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    NotFound,
    OperatingError,
    OutcomeUnknown,
    TooManyRequests,
    Unavailable,
)
from kedge.keys import Key, Origin
from kedge.limits import Limits

SETTINGS = Key("ConfigMap", "default", "settings")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "owner-1", "controller": True}


@asynchronous
async def test_a_request_that_was_not_carried_out_is_sent_again() -> None:
    world, transport, client = await flaky()
    transport.before = [Unavailable("down"), TooManyRequests("busy", retry_after_s=0.0), None]
    await client.create(CONFIG_MAP, config_map())
    assert transport.calls == ["create"] * 3
    transport.calls.clear()
    transport.before = [Unavailable("down"), None]
    await client.get(SETTINGS)
    assert transport.calls == ["get"] * 2


@asynchronous
async def test_attempts_are_bounded() -> None:
    _, transport, client = await flaky()
    transport.before = [Unavailable("down")] * 50
    with pytest.raises(Unavailable):
        await client.create(CONFIG_MAP, config_map())
    assert len(transport.calls) == QUICK.client_attempts_max


@asynchronous
async def test_a_deadline_ends_the_retries() -> None:
    world, transport, client = await flaky(Limits(client_deadline_s=0.0))
    transport.before = [Unavailable("down"), None]
    with pytest.raises(Unavailable):
        await client.create(CONFIG_MAP, config_map())
    assert len(transport.calls) == 1


@pytest.mark.parametrize("error", [Conflict("x"), AlreadyExists("x"), BadRequest("x"), NotFound("x")])
def test_an_error_reply_is_not_retried(error: OperatingError) -> None:
    @asynchronous
    async def run() -> None:
        _, transport, client = await flaky()
        transport.before = [error]
        with pytest.raises(type(error)):
            await client.create(CONFIG_MAP, config_map())
        assert transport.calls == ["create"]

    run()


@asynchronous
async def test_a_lost_reply_leads_to_a_read_that_finds_the_write() -> None:
    world, transport, client = await flaky()
    transport.after = [lost()]
    written = await client.create(CONFIG_MAP, config_map())
    assert transport.calls == ["create", "get"]
    assert written.object.revision == (await world.get(SETTINGS)).revision


@asynchronous
async def test_a_lost_request_is_sent_again_under_the_same_id_after_a_read() -> None:
    world, transport, client = await flaky()
    transport.before = [lost()]
    await client.create(CONFIG_MAP, config_map())
    assert transport.calls == ["create", "get", "create"]


@asynchronous
async def test_a_write_that_was_overwritten_since_is_not_made_twice() -> None:
    """The reply is lost, another client writes, the read finds that version: the repeat gets the first outcome."""
    world, transport, client = await flaky()
    await world.create(config_map(a="0"))

    async def interfere() -> None:
        await patched.wait()
        await world.service.patch(SETTINGS, {"data": {"a": "2"}})

    patched = asyncio.Event()
    interfering = asyncio.ensure_future(interfere())
    original = transport.send

    async def patch_then_wait(request: Request[Reply]) -> Reply:
        result = await original(request)
        if isinstance(request, Patch):
            patched.set()
            if not interfering.done():
                await interfering
                raise lost()
        return result

    transport.send = patch_then_wait  # type: ignore[method-assign]
    await client.patch(SETTINGS, {"data": {"a": "1"}})
    assert (await world.get(SETTINGS)).edit()["data"] == {"a": "2"}


@asynchronous
async def test_an_outcome_that_stays_unknown_is_reported_as_unknown() -> None:
    _, transport, client = await flaky()
    transport.before = [lost(), *[Unavailable("down")] * 20]
    with pytest.raises(OutcomeUnknown):
        await client.create(CONFIG_MAP, config_map())


@asynchronous
async def test_without_operation_ids_a_write_is_not_repeated_blindly() -> None:
    _, transport, client = await flaky()
    transport.repeats_safely = False
    transport.before = [lost()]
    with pytest.raises(OutcomeUnknown):
        await client.create(CONFIG_MAP, config_map())
    assert transport.calls == ["create", "get"]


# -- ensure ----------------------------------------------------------------------------------------


def owned(uid: str = "owner-1") -> dict[str, Any]:
    body = config_map()
    body["metadata"]["ownerReferences"] = [{**OWNER, "uid": uid}]
    return body


@asynchronous
async def test_ensure_creates_once_and_then_confirms() -> None:
    world, _, client = await flaky()
    first = await client.ensure(CONFIG_MAP, owned())
    before = await world.store.revision()
    again = await client.ensure(CONFIG_MAP, owned())
    assert again.object.uid == first.object.uid
    assert await world.store.revision() == before


@asynchronous
async def test_ensure_does_not_adopt_an_object_of_another_owner() -> None:
    world, _, client = await flaky()
    await world.create(owned("owner-2"))
    with pytest.raises(AlreadyExists, match="another owner"):
        await client.ensure(CONFIG_MAP, owned("owner-1"))


@asynchronous
async def test_ensure_survives_every_way_of_losing_a_message() -> None:
    ways: list[Callable[[FlakyTransport], None]] = [
        lambda t: t.before.extend([lost()]),
        lambda t: t.after.extend([lost()]),
        lambda t: t.after.extend([lost(), lost(), lost()]),
        lambda t: t.before.extend([lost(), Unavailable("x"), None]),
    ]
    for way in ways:
        world, transport, client = await flaky()
        way(transport)
        await client.ensure(CONFIG_MAP, owned())
        assert len((await world.service.list(CONFIG_MAP)).objects) == 1


@asynchronous
async def test_an_object_with_a_generated_name_cannot_be_ensured() -> None:
    _, _, client = await flaky()
    with pytest.raises(BadRequest, match="generated name"):
        await client.ensure(CONFIG_MAP, {"metadata": {"generateName": "x-", "namespace": "default"}})


# -- bounds and breaker ----------------------------------------------------------------------------


@asynchronous
async def test_requests_in_flight_are_bounded() -> None:
    world, transport, client = await flaky(Limits(client_in_flight_max=4))
    await world.create(config_map())
    transport.gate = asyncio.Event()
    reads = [asyncio.ensure_future(client.get(SETTINGS)) for _ in range(30)]
    for _ in range(10):
        await asyncio.sleep(0)
    transport.gate.set()
    await asyncio.gather(*reads)
    assert transport.in_flight_max == 4


@asynchronous
async def test_requests_to_a_failing_dependency_are_rejected_until_a_probe() -> None:
    limits = Limits(breaker_failures_max=3, client_attempts_max=1, breaker_open_s=10.0)
    world, transport, client = await flaky(limits)
    await world.create(config_map())
    transport.before = [Unavailable("down")] * 4
    for _ in range(3):
        with pytest.raises(Unavailable):
            await client.get(SETTINGS)
    assert client.breaker.state is BreakerState.OPEN
    calls = len(transport.calls)
    with pytest.raises(Unavailable, match="held off"):
        await client.get(SETTINGS)
    assert len(transport.calls) == calls
    world.clock.advance(60)
    with pytest.raises(Unavailable, match="down"):  # the probe is sent, and fails
        await client.get(SETTINGS)
    assert client.breaker.state is BreakerState.OPEN
    world.clock.advance(60)
    await client.get(SETTINGS)
    closed: BreakerState = client.breaker.state
    assert closed is BreakerState.CLOSED


@asynchronous
async def test_only_one_request_probes_at_a_time() -> None:
    limits = Limits(breaker_failures_max=1, client_attempts_max=1, breaker_open_s=1.0)
    world, transport, client = await flaky(limits)
    await world.create(config_map())
    transport.before = [Unavailable("down")]
    with pytest.raises(Unavailable):
        await client.get(SETTINGS)
    world.clock.advance(60)
    transport.gate = asyncio.Event()
    calls = len(transport.calls)
    probes = [asyncio.ensure_future(client.get(SETTINGS)) for _ in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(transport.calls) == calls + 1
    probes[0].cancel()  # a cancelled probe must not leave the breaker probing for ever
    await asyncio.gather(*probes, return_exceptions=True)
    transport.gate = None
    await client.get(SETTINGS)
    assert client.breaker.state is BreakerState.CLOSED


@asynchronous
async def test_an_error_reply_shows_that_the_dependency_is_alive() -> None:
    _, transport, client = await flaky(Limits(breaker_failures_max=1, client_attempts_max=1))
    for _ in range(5):
        with pytest.raises(NotFound):
            await client.get(SETTINGS)
    assert client.breaker.state is BreakerState.CLOSED


@asynchronous
async def test_a_version_carries_the_operation_that_wrote_it() -> None:
    world, _, client = await flaky()
    await client.create(CONFIG_MAP, config_map(), options=WriteOptions(origin=Origin(decision="d-7")))
    found = await world.get(SETTINGS)
    assert found.origin.decision == "d-7"
    assert found.origin.operation
