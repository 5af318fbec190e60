"""A lost reply, for each verb: the write is found or repeated under its id, never made twice, and reported as made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.kit.client import FlakyTransport, flaky, lost
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, deployment, node, pod, pod_key

from kedge.api.requests import Binding, DeleteCollection, DeleteOptions, Reply, Request, Written
from kedge.client.contract import BreakerState, Client
from kedge.client.direct import DirectTransport
from kedge.errors import AlreadyExists, HeldOff, OperatingError, OutcomeUnknown, Unavailable
from kedge.keys import Key
from kedge.limits import Limits

SETTINGS = Key("ConfigMap", "default", "settings")
WEB = Key("Deployment.apps", "default", "web")
Verb = Callable[[Client, World], Awaitable[Written]]


class LostReplies(FlakyTransport):
    """Carries every write out, then loses its reply; `interfere` runs before the client can read."""

    lose = True
    interfere: Callable[[], Awaitable[object]] | None = None

    async def send(self, request: Request[Reply]) -> Reply:
        result = await super().send(request)
        if self.lose and not request.reads:
            self.lose = False
            if self.interfere is not None:
                await self.interfere()
            raise lost()
        return result


async def _confirm(client: Client, world: World) -> Written:
    gone = await world.get(pod_key("bound"))
    await world.service.delete(gone.key, DeleteOptions(grace_s=0))
    owner = await world.get(Key("Node", "", "node-a"))
    return await client.confirm_ended(node="node-a", node_uid=owner.uid, pod_uid=gone.uid)


VERBS: dict[str, Verb] = {
    "create": lambda client, _: client.create(CONFIG_MAP, config_map("new")),
    "create a generated name": lambda client, _: client.create(
        CONFIG_MAP, {"metadata": {"generateName": "m-", "namespace": "default"}}
    ),
    "ensure": lambda client, _: client.ensure(CONFIG_MAP, config_map("new")),
    "update": lambda client, _: client.update(SETTINGS, config_map(a="2")),
    "patch": lambda client, _: client.patch(SETTINGS, {"data": {"a": "2"}}),
    "patch a scale": lambda client, _: client.patch(WEB, {"spec": {"replicas": 9}}, subresource="scale"),
    "delete": lambda client, _: client.delete(SETTINGS),
    "delete with grace": lambda client, _: client.delete(pod_key("bound")),
    "bind": lambda client, _: client.bind(Binding(pod=pod_key(), node="node-a")),
    "evict": lambda client, _: client.evict(pod_key()),
    "confirm": _confirm,
}


async def populated() -> tuple[World, LostReplies, Client]:
    world, _, _ = await flaky()
    await world.create(node())
    for name in ("web-0", "bound"):
        await world.create(pod(name))
    await world.service.bind(Binding(pod=pod_key("bound"), node="node-a"))
    await world.create(config_map(a="1"))
    await world.create(deployment())
    transport = LostReplies(world)
    return world, transport, Client(transport, world.env, component="test")


@pytest.mark.parametrize("name", VERBS)
def test_a_write_with_a_lost_reply_is_made_once_and_reported_as_made(name: str) -> None:
    @asynchronous
    async def run() -> None:
        world, transport, client = await populated()
        commits = world.store.statistics().commits + (name == "confirm")  # its pod is deleted first
        await VERBS[name](client, world)
        assert not transport.lose
        assert world.store.statistics().commits == commits + 1

    run()


async def _replace_map(world: World) -> None:
    await world.service.delete(SETTINGS)
    await world.create(config_map(a="theirs"))


async def _replace_pod(world: World) -> None:
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    await world.create(pod())


@pytest.mark.parametrize(
    ("name", "interfere"),
    [
        ("update", _replace_map),
        ("patch", _replace_map),
        ("bind", _replace_pod),
        ("delete", lambda world: world.create(config_map(a="theirs"))),
        ("evict", lambda world: world.create(pod())),
    ],
)
def test_a_repeat_does_not_touch_the_successor_of_the_name(
    name: str, interfere: Callable[[World], Awaitable[object]]
) -> None:
    @asynchronous
    async def run() -> None:
        world, transport, client = await populated()
        transport.interfere = lambda: interfere(world)
        await VERBS[name](client, world)
        if name in ("bind", "evict"):
            assert not (await world.get(pod_key())).view.spec.node_name
        else:
            assert (await world.get(SETTINGS)).edit()["data"] == {"a": "theirs"}

    run()


# -- reads, ensure, breaker ------------------------------------------------------------------------


@asynchronous
async def test_a_read_without_a_reply_is_retried() -> None:
    world, transport, client = await flaky()
    await world.create(config_map())
    transport.before = [lost(), None]
    await client.get(SETTINGS)
    assert transport.calls == ["get"] * 2


@asynchronous
async def test_a_write_is_retried_when_the_confirming_read_gets_no_reply() -> None:
    world, transport, client = await flaky()
    transport.before = [lost(), *[lost()] * 5, None]  # the create, then every attempt to read it
    await client.create(CONFIG_MAP, config_map())
    await world.get(SETTINGS)


@asynchronous
async def test_ensure_does_not_confirm_an_object_that_is_being_deleted() -> None:
    world, _, client = await flaky()
    body = config_map()
    body["metadata"]["finalizers"] = ["example.dev/hold"]
    await client.ensure(CONFIG_MAP, body)
    await world.service.delete(SETTINGS)
    with pytest.raises(AlreadyExists, match="being deleted"):
        await client.ensure(CONFIG_MAP, body)


def fail(client: Client, error: OperatingError) -> None:
    client.breaker.ended(error, probe=client.breaker.admit())


@asynchronous
async def test_requests_that_fail_together_open_the_breaker_once() -> None:
    world, _, client = await flaky(Limits(breaker_failures_max=2, breaker_open_s=2.0))
    for probe in [client.breaker.admit() for _ in range(30)]:
        client.breaker.ended(OutcomeUnknown("no reply"), probe=probe)
    assert client.breaker.state is BreakerState.OPEN
    world.clock.advance(3.1)  # 1.5 times the first hold: its upper bound with jitter
    assert client.breaker.admit()


@asynchronous
async def test_a_reply_to_an_earlier_request_does_not_end_the_probe() -> None:
    world, _, client = await flaky(Limits(breaker_failures_max=1, breaker_open_s=1.0))
    late_failure, late_cancel = client.breaker.admit(), client.breaker.admit()
    fail(client, Unavailable("down"))
    world.clock.advance(60)
    probe = client.breaker.admit()
    client.breaker.ended(Unavailable("down"), probe=late_failure)
    client.breaker.ended(KeyboardInterrupt(), probe=late_cancel)
    assert client.breaker.state is BreakerState.PROBING
    with pytest.raises(Unavailable, match="held off"):
        client.breaker.admit()
    client.breaker.ended(None, probe=probe)
    closed: BreakerState = client.breaker.state
    assert closed is BreakerState.CLOSED


@asynchronous
async def test_the_breaker_reports_how_long_it_stays_open() -> None:
    world, _, client = await flaky(Limits(breaker_failures_max=1, breaker_open_s=2.0))
    breaker = client.breaker
    assert breaker.held_s() == 0.0
    fail(client, Unavailable("down"))
    held_s = breaker.held_s()
    assert 1.0 <= held_s <= 3.0
    with pytest.raises(HeldOff, match=f"for another {held_s:.1f} s"):
        breaker.admit()
    world.clock.advance(held_s / 2)
    assert breaker.held_s() == pytest.approx(held_s / 2)
    world.clock.advance(held_s / 2 + 0.001)
    assert breaker.held_s() == 0.0
    probe = breaker.admit()
    assert breaker.held_s() == 2.0  # a probe is in flight: its reply time is unknown
    with pytest.raises(HeldOff):
        breaker.admit()
    breaker.ended(None, probe=probe)
    assert breaker.held_s() == 0.0


@asynchronous
async def test_a_collection_delete_is_sent_once_and_its_unknown_outcome_reported() -> None:
    """A repeat would also delete objects created since the first attempt."""
    world, transport, client = await flaky()
    for name in ("a", "b"):
        await world.create(config_map(name))
    assert len(await client.delete_collection(CONFIG_MAP)) == 2

    async def lose(request: Request[Reply]) -> Reply:
        reply = await DirectTransport.send(transport, request)
        if not isinstance(request, DeleteCollection):
            return reply
        await world.create(config_map("since"))
        raise lost()

    await world.create(config_map("c"))
    transport.send = lose  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await client.delete_collection(CONFIG_MAP)
    assert [found.key.name for found in (await client.list(CONFIG_MAP)).objects] == ["since"]


@asynchronous
async def test_a_scale_is_read_through_the_client() -> None:
    world, _, client = await flaky()
    await world.create(deployment())
    assert (await client.get_scale(WEB))["spec"]["replicas"] == 3
