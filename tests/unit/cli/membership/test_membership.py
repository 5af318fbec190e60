"""Components that join over HTTPS: the server is verified first, and certificates are renewed before they end."""

from __future__ import annotations

import asyncio
import ssl
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.kit.join_world import JoinWorld, join_world
from tests.objects import NODE, asynchronous, node

from kedge.cli.component import _follow
from kedge.cli.membership.certificates import SCHEDULER, agent_identity
from kedge.cli.membership.component_membership import RENEWED_FROM, RENEWED_UNTIL
from kedge.cli.membership.join_token import JoinToken, new_bootstrap_token, parse_join_token
from kedge.client.contract import Client
from kedge.client.http import FailoverTransport, read_kubeconfig
from kedge.errors import OperatingError, Terminal, Unauthorized, Unavailable
from kedge.keys import Key
from kedge.limits import Limits

QUICK = replace(Limits(), certificate_check_s=0.02, client_kubeconfig_s=0.02)


async def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not in ten seconds: {what}")


async def node_name_as(world: JoinWorld, path: Path) -> str:
    """Read a node with the identity of a file."""
    transport = FailoverTransport([read_kubeconfig(path)], world.env)
    try:
        return (await Client(transport, world.env, component="test").get(Key("Node", "", "node-a"))).key.name
    finally:
        await transport.close()


@asynchronous
async def test_an_agent_joins_and_its_identity_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    async with join_world(tmp_path) as world:
        member = world.member(await world.make_token())
        await member.ensure_joined()
        assert world.kept().user == "system:node:node-a"
        assert stat.S_IMODE(member.kubeconfig.stat().st_mode) == 0o600
        assert [each.name for each in world.folder.iterdir()] == ["agent.kubeconfig"]
        await world.client.create(NODE, node("node-a"))
        assert await node_name_as(world, member.kubeconfig) == "node-a"
        before = member.kubeconfig.read_bytes()
        await world.member(None).ensure_joined()  # no token is needed any more
        assert member.kubeconfig.read_bytes() == before


@asynchronous
async def test_a_scheduler_joins_with_a_token_for_it_and_not_with_one_of_an_agent(tmp_path: Path) -> None:
    async with join_world(tmp_path) as world:
        waiting = asyncio.ensure_future(world.member(await world.make_token("agent"), SCHEDULER).ensure_joined())
        await until(lambda: any("approve" in each for each in world.notes), "it waits for a person")
        assert not waiting.done()
        waiting.cancel()
        await world.member(await world.make_token("scheduler"), SCHEDULER).ensure_joined()
        assert world.kept("scheduler").user == "system:kube-scheduler"


@asynchronous
async def test_the_token_is_not_sent_to_a_server_of_another_authority(tmp_path: Path) -> None:
    async with join_world(tmp_path) as world:
        token = JoinToken("0" * 64, (await world.make_token()).token)
        with pytest.raises(Terminal, match="The token was not sent"):
            await world.member(token).ensure_joined()
        assert world.authenticator.tokens == []
        assert list(world.folder.iterdir()) == []
        right = await world.make_token()
        await world.member(right).ensure_joined()
        assert set(world.authenticator.tokens) == {right.token}


@asynchronous
async def test_a_token_that_expired_is_unknown_or_damaged_joins_nothing(tmp_path: Path) -> None:
    async with join_world(tmp_path) as world:
        token = await world.make_token(valid_s=10.0)
        world.ahead = timedelta(seconds=11)
        with pytest.raises(Unauthorized, match="kedge token create --for agent"):
            await world.member(token).ensure_joined()
        with pytest.raises(Unauthorized):
            await world.member(token._replace(token=new_bootstrap_token())).ensure_joined()
        with pytest.raises(Terminal, match="pass --token"):
            await world.member(None).ensure_joined()
        for text in ("", "abcdef.0123456789abcdef", "sha256:00:abcdef.0123456789abcdef", f"sha256:{'0' * 64}:x"):
            with pytest.raises(Terminal, match="kedge token create"):
                parse_join_token(text)


@asynchronous
async def test_a_running_component_renews_its_certificate_and_uses_the_new_one(tmp_path: Path) -> None:
    began = timedelta(days=-365 * 0.95)  # TLS has the real time, so certificates must be valid now
    async with join_world(tmp_path, QUICK, ahead=began) as world:
        member = world.member(await world.make_token())
        await member.ensure_joined()
        await world.client.create(NODE, node("node-a"))
        first = world.kept()
        transport = FailoverTransport([read_kubeconfig(member.kubeconfig)], world.env)
        tasks = [
            asyncio.ensure_future(member.run_renewals(transport)),
            asyncio.ensure_future(_follow((member.kubeconfig,), (), transport, world.env)),
        ]
        life = first.ends - first.issued
        world.ahead = began + life * (RENEWED_FROM - 0.01)
        await asyncio.sleep(0.2)
        assert world.kept().ends == first.ends, "too early"
        world.ahead = began + life * (RENEWED_UNTIL + 0.01)
        await until(lambda: world.kept().ends > first.ends, "renewed")
        value = world.env.metrics.registry.get_sample_value
        await until(lambda: value("kedge_client_kubeconfigs_total") == 1, "the running transport has the new one")
        found = await Client(transport, world.env, component="test").get(Key("Node", "", "node-a"))
        assert found.key.name == "node-a"
        assert value("kedge_certificate_renewals_total", {"outcome": "renewed"}) == 1
        for task in tasks:
            task.cancel()
        await transport.close()


@asynchronous
async def test_an_expired_certificate_is_refused_and_replaced_with_a_new_token(tmp_path: Path) -> None:
    """Certificates of a cluster whose clock was a year and a bit behind have ended for TLS, which has the real time."""
    async with join_world(tmp_path, ahead=timedelta(days=-366)) as world:
        token = await world.make_token(valid_s=10 * 366 * 86_400.0)
        # The certificate of the server must be valid now; those of components are made in the past.
        member = world.member(token)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(3):
                await member._join(token)
        world.identity.tls.load_cert_chain(_serving_now(world, tmp_path))
        await member.ensure_joined()
        ended = world.kept()
        await world.client.create(NODE, node("node-b"))
        with pytest.raises((OperatingError, ssl.SSLError)):
            await node_name_as(world, member.kubeconfig)
        world.ahead = timedelta()
        with pytest.raises(Terminal, match="has expired: pass --token"):
            await world.member(None).ensure_joined()
        await member.ensure_joined()
        assert world.kept().ends > ended.ends
        await world.client.create(NODE, node("node-a"))
        assert await node_name_as(world, member.kubeconfig) == "node-a"


def _serving_now(world: JoinWorld, folder: Path) -> Path:
    ahead, world.ahead = world.ahead, timedelta()
    path = folder / "serving-now.pem"
    world.identity.authority.ensure_serving(path, ["127.0.0.1"], world.env.now())
    world.ahead = ahead
    return path


@asynchronous
async def test_a_file_of_another_node_or_another_cluster_is_not_used(tmp_path: Path) -> None:
    async with join_world(tmp_path) as world:
        await world.member(await world.make_token()).ensure_joined()
        first = world.kept()
        await world.member(await world.make_token(), agent_identity("node-b")).ensure_joined()
        assert world.kept().user == "system:node:node-b"
        other = JoinToken("0" * 64, new_bootstrap_token())
        with pytest.raises(Terminal, match="another authority"):
            await world.member(other, agent_identity("node-b")).ensure_joined()
        assert world.kept().user != first.user
