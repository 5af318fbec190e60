"""Faults on the links of `kedge up`: each does what it is named after, and ends with the connection that placed it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, make_world

from kedge.api.requests import Create, Get, OpenWatch, WatchEvent, WatchOptions
from kedge.cli.live_faults.fault_socket import (
    SOCKET,
    BreakWatches,
    EndFault,
    FaultClient,
    FaultSocket,
    ListLinks,
    ReadLimits,
)
from kedge.cli.live_faults.fault_socket import PlaceFault as Place
from kedge.cli.live_faults.links import (
    CONTROL_PLANE,
    FaultLink,
    LinkCut,
    LinkDelay,
    LinkLateWatch,
    LinkLostReply,
    LinkStall,
)
from kedge.client.direct import DirectTransport
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.keys import Key
from kedge.limits import Limits

A = Key("ConfigMap", "default", "a")
WITHIN_S = 30.0
QUIET_S = 0.1


async def link_to(world: World) -> FaultLink:
    await world.create(config_map("a"))
    return FaultLink("node-1", DirectTransport(world.service))


async def watch(link: FaultLink) -> AsyncGenerator[WatchEvent, None]:
    return await link.open_watch(OpenWatch(CONFIG_MAP, WatchOptions(resource_version="1")))


async def waits(task: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait([task], timeout=QUIET_S)
    return not done


async def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = asyncio.get_running_loop().time() + WITHIN_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.01)


@asynchronous
async def test_a_cut_refuses_requests_breaks_watches_and_heals() -> None:
    world = await make_world()
    link = await link_to(world)
    events = await watch(link)
    while (await anext(events)).revision < (await world.get(A)).revision:
        pass
    pending = asyncio.ensure_future(anext(events))
    assert await waits(pending)
    fault = LinkCut()
    link.add(fault)
    with pytest.raises(Unavailable, match="broken by a fault"):
        await asyncio.wait_for(pending, WITHIN_S)
    with pytest.raises(Unavailable, match="is cut"):
        await link.send(Get(A))
    with pytest.raises(Unavailable, match="is cut"):
        await watch(link)
    await events.aclose()
    link.remove(fault)
    assert (await link.send(Get(A))).key == A
    assert await anext(await watch(link))


@asynchronous
async def test_a_stall_holds_requests_and_events_until_it_ends() -> None:
    world = await make_world()
    link = await link_to(world)
    events = await watch(link)
    fault = LinkStall()
    link.add(fault)
    request, event = asyncio.ensure_future(link.send(Get(A))), asyncio.ensure_future(anext(events))
    assert await waits(request)
    assert await waits(event)
    link.remove(fault)
    assert (await asyncio.wait_for(request, WITHIN_S)).key == A
    assert await asyncio.wait_for(event, WITHIN_S)


@asynchronous
async def test_a_late_watch_delivers_everything_in_order_in_the_end() -> None:
    world = await make_world()
    link = await link_to(world)
    other, own = LinkLateWatch("Pod"), LinkLateWatch("ConfigMap")
    link.add(other)
    events = await watch(link)
    first = await asyncio.wait_for(anext(events), WITHIN_S)
    link.add(own)
    for name in ("b", "c"):
        await world.create(config_map(name))
    event = asyncio.ensure_future(anext(events))
    assert await waits(event)
    link.remove(own)
    seen = [first, await asyncio.wait_for(event, WITHIN_S)]
    while seen[-1].object is None or seen[-1].object.key.name != "c":
        seen.append(await asyncio.wait_for(anext(events), WITHIN_S))
    assert [each.object.key.name for each in seen if each.object is not None] == ["a", "b", "c"]


@asynchronous
async def test_a_delay_makes_requests_slower() -> None:
    link = await link_to(await make_world())
    link.add(LinkDelay(2 * QUIET_S))
    request = asyncio.ensure_future(link.send(Get(A)))
    assert await waits(request)
    assert (await asyncio.wait_for(request, WITHIN_S)).key == A


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_reply_is_an_unknown_outcome_as_often_as_asked(committed: bool) -> None:
    async def run() -> None:
        world = await make_world()
        link = await link_to(world)
        link.add(LinkLostReply("create", "ConfigMap", "default", "b*", committed, 0.0, 1))
        await link.send(Create(CONFIG_MAP, config_map("c"), "default"))
        with pytest.raises(OutcomeUnknown):
            await link.send(Create(CONFIG_MAP, config_map("b"), "default"))
        listed = await world.service.list(CONFIG_MAP)
        assert ("b" in [each.key.name for each in listed.objects]) == committed
        await link.send(Create(CONFIG_MAP, config_map("bb"), "default"))

    asyncio.run(run())


@asynchronous
async def test_faults_are_placed_over_the_socket_and_end_with_its_connection(tmp_path: Path) -> None:
    world = await make_world()
    await world.create(config_map("a"))
    state = tmp_path / ("deep" * 30)  # the path of the socket is too long for the kernel
    state.mkdir()
    faults = FaultSocket(state, replace(Limits(), node_lease_s=77.0))
    node, plane = (faults.add(FaultLink(name, DirectTransport(world.service))) for name in ("node-1", CONTROL_PLANE))
    await faults.start()
    assert (state / SOCKET).stat().st_mode & 0o777 == 0o600
    try:
        first, second = await FaultClient.connect(state), await FaultClient.connect(state)
        assert await first.ask(ListLinks()) == ["node-1", CONTROL_PLANE]
        assert Limits(**await first.ask(ReadLimits())) == replace(Limits(), node_lease_s=77.0)
        number = await first.ask(Place("node-1", LinkCut()))
        await first.ask(Place("default-scheduler", LinkCut()))
        await second.ask(Place("", LinkDelay(0.0)))
        assert [type(each) for each in node.faults] == [LinkCut, LinkDelay]
        assert [type(each) for each in plane.faults] == [LinkCut, LinkDelay]
        assert await first.ask(EndFault(number))
        assert [type(each) for each in node.faults] == [LinkDelay]
        first.close()
        await eventually(lambda: len(plane.faults) == 1)
        assert [type(each) for each in plane.faults] == [LinkDelay]
        events = await watch(node)
        assert await second.ask(BreakWatches("", "Pod")) == 0
        assert await second.ask(BreakWatches("", "ConfigMap")) == 1
        with pytest.raises(Unavailable, match="open it again"):
            await anext(events)
        second.close()
    finally:
        await faults.stop()
    with pytest.raises(Unavailable, match="no kedge up that takes faults runs"):
        await FaultClient.connect(state)
