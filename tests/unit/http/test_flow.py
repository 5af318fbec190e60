"""Priority and fairness on the wire: which requests wait under load, which do not, and the form of a refusal."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kit.access import ADA, ADMIN, GuardedApi, account, add_defaults, agent_of, binding
from tests.kit.access import NamedAuthenticator as ByHeader
from tests.kit.api_server import local_api
from tests.kit.loops import eventually, on_loop

from kedge.api.access import AUTHENTICATED, CONTROLLERS, SCHEDULERS, Caller
from kedge.api.requests import List
from kedge.errors import Unavailable
from kedge.limits import Limits
from kedge.server.http.exchange import Exchange
from kedge.server.http.flow.levels import PriorityLevel, classify
from kedge.server.http.flow.list_costs import ListShape
from kedge.server.http.parameters import parse_query
from kedge.server.http.routes import resource_path
from kedge.server.http.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
TABLE = b"application/json;as=Table;v=v1;g=meta.k8s.io"
BEA = Caller("bea", (AUTHENTICATED,))
SMALL = Limits(http_other_seats_max=1, http_flow_waiting_max=2, http_waiting_max=3)


class Flooded(GuardedApi):
    """A server with a level that has no room left."""

    server: ApiServer

    def fill(self, level: PriorityLevel) -> None:
        lane = self.server.handler.flow._requests[level]
        lane.take("someone", lane.capacity, 1)

    def empty(self, level: PriorityLevel) -> None:
        lane = self.server.handler.flow._requests[level]
        self.server.handler.flow.release(lane, "someone", lane.capacity)

    def waiting(self, level: PriorityLevel) -> int:
        return self.server.handler.flow._requests[level].waiting


@asynccontextmanager
async def flooded_api(limits: Limits = SMALL, full: PriorityLevel = PriorityLevel.OTHERS) -> AsyncIterator[Flooded]:
    async with local_api(limits=limits, authenticator=ByHeader()) as (server, port):
        api = Flooded(server.handler._service, port, server.handler)
        api.server = server
        await add_defaults(api.service)
        await api.send(ADMIN, "POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
        for user in ("ada", "bea"):
            body = binding(user, "ClusterRole/edit", f"User/{user}")
            await api.send(ADMIN, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
        api.fill(full)
        yield api


def config_map(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


@on_loop
async def test_a_request_of_a_full_level_waits_and_is_answered_when_there_is_room() -> None:
    async with flooded_api() as api:
        sent = asyncio.ensure_future(api.send(ADA, "POST", MAPS, config_map("a")))
        await eventually(lambda: api.waiting(PriorityLevel.OTHERS) == 1)
        assert not sent.done()
        api.empty(PriorityLevel.OTHERS)
        assert (await sent)[0] == 201


@on_loop
async def test_a_full_queue_is_answered_with_429_and_retry_after_and_other_users_still_get_in() -> None:
    async with flooded_api() as api:
        waiting = [asyncio.ensure_future(api.send(ADA, "POST", MAPS, config_map(f"a{n}"))) for n in range(2)]
        await eventually(lambda: api.waiting(PriorityLevel.OTHERS) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Named ada\r\n\r\n".encode())
        writer.write(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Named ada\r\n".encode())
        writer.write(b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
        replies = await reader.read()
        head, _, body = replies.partition(b"HTTP/1.1 429")[2].partition(b"\r\n\r\n")
        assert b"\r\nRetry-After: 1\r\n" in head + b"\r\n"
        status = json.loads(body)
        assert (status["reason"], status["details"]["retryAfterSeconds"]) == ("TooManyRequests", 1)
        writer.close()
        other = asyncio.ensure_future(api.send(BEA, "POST", MAPS, config_map("b")))
        await eventually(lambda: api.waiting(PriorityLevel.OTHERS) == 3)
        api.empty(PriorityLevel.OTHERS)
        assert [code for code, _ in await asyncio.gather(*waiting, other)] == [201, 201, 201]


@on_loop
async def test_other_levels_do_not_wait_for_a_full_one() -> None:
    async with flooded_api() as api:
        await api.send(ADMIN, "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        lease = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}
        agent = agent_of("n1")
        place = LEASE.rpartition("/")[0]
        assert (await api.send(agent, "POST", place, lease))[0] == 201
        for caller in (agent, ADMIN):
            assert (await api.send(caller, "GET", "/api/v1/nodes/n1"))[0] == 200
        assert (await api.send(account("default"), "POST", MAPS, config_map("a")))[0] == 403
        assert (await api.send(None, "GET", "/livez"))[0] == 200


@on_loop
async def test_a_request_that_waits_too_long_gets_429_and_nothing_of_it_is_written() -> None:
    async with flooded_api(dataclasses.replace(SMALL, http_wait_s_max=0.1)) as api:
        code, status = await api.send(ADA, "POST", MAPS, config_map("a"))
        assert (code, status["reason"]) == (429, "TooManyRequests")
        assert "waited as long as it may" in status["message"]
        api.empty(PriorityLevel.OTHERS)
        assert (await api.send(ADA, "GET", f"{MAPS}/a"))[0] == 404


@on_loop
async def test_a_request_whose_client_left_while_it_waited_is_not_carried_out() -> None:
    async with flooded_api() as api:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Named ada\r\nContent-Length: 25\r\n\r\n"
        writer.write(head.encode() + b'{"metadata":{"name":"a"}}')
        await eventually(lambda: api.waiting(PriorityLevel.OTHERS) == 1)
        writer.transport.abort()
        await eventually(lambda: not api.server.connections.open)
        api.empty(PriorityLevel.OTHERS)
        await eventually(lambda: api.waiting(PriorityLevel.OTHERS) == 0)
        assert (await api.send(ADA, "GET", f"{MAPS}/a"))[0] == 404
        assert api.server.handler.flow._requests[PriorityLevel.OTHERS].used == 0


@on_loop
async def test_lists_are_costed_by_the_bytes_of_the_last_one() -> None:
    limits = Limits(http_list_bytes_max=64 * 1024, http_list_bytes_unknown=1_000)
    async with flooded_api(limits) as api:
        for n in range(40):
            body = {**config_map(f"m{n}"), "data": {"x": "x" * 1_000}}
            assert (await api.send(ADMIN, "POST", MAPS, body))[0] == 201
        lane = api.server.handler.flow._lists[PriorityLevel.ADMINISTRATORS]
        estimates = [lane_estimate(api)]
        for _ in range(2):
            assert (await api.send(ADMIN, "GET", MAPS))[0] == 200
            estimates.append(lane_estimate(api))
        assert estimates[0] == 1_000
        assert 40_000 < estimates[1] < 60_000
        assert lane.used == 0
        assert (await api.send(ADMIN, "GET", f"{MAPS}?labelSelector=a%3Db"))[0] == 200
        assert (await api.send(ADA, "GET", f"{MAPS}?limit=x"))[0] == 400
        assert lane_estimate(api) == estimates[1], "neither a selector nor a refusal makes a list cheap"
        lane.take("someone", estimates[1], 1)
        sent = asyncio.ensure_future(api.send(ADMIN, "GET", MAPS))
        await eventually(lambda: lane.waiting == 1)
        assert (await api.send(ADMIN, "GET", f"{MAPS}/m1"))[0] == 200
        api.server.handler.flow.release(lane, "someone", estimates[1])
        assert (await sent)[0] == 200


def lane_estimate(api: Flooded, query: str = "", accept: bytes = b"") -> int:
    path = resource_path(MAPS.encode())
    assert path is not None
    return api.server.handler.flow.costs.estimate(ListShape.of(path, parse_query(query.encode()), accept))


@on_loop
async def test_a_list_of_few_large_objects_costs_their_bytes_and_that_of_another_form_its_own() -> None:
    limits = Limits(http_list_bytes_max=64 * 1024, http_list_bytes_unknown=1_000)
    async with flooded_api(limits) as api:
        for n in range(10):
            body = {**config_map(f"m{n}"), "data": {"x": "x" * 100_000}}
            assert (await api.send(ADMIN, "POST", MAPS, body))[0] == 201
        assert (await api.send(ADMIN, "GET", MAPS))[0] == 200
        whole = lane_estimate(api)
        assert 1_000_000 < whole < 1_100_000
        assert lane_estimate(api, accept=TABLE) == 1_000
        accept = f"Accept: {TABLE.decode()}"
        assert (await api.send(ADMIN, "GET", MAPS, None, accept))[0] == 200
        assert lane_estimate(api) == whole, "a Table does not show the size of the objects"
        assert lane_estimate(api, accept=TABLE) == 16 * 1024
        assert lane_estimate(api, "includeObject=Object", TABLE) == 1_000
        assert (await api.send(ADMIN, "GET", f"{MAPS}?includeObject=Object", None, accept))[0] == 200
        assert lane_estimate(api, "includeObject=Object", TABLE) > 1_000_000
        assert lane_estimate(api, accept=b"text/html") == whole, "it is refused, and costs what it would have"


@on_loop
async def test_a_collection_that_is_deleted_in_a_batch_costs_its_bytes() -> None:
    limits = Limits(http_list_bytes_unknown=1_000)
    async with flooded_api(limits) as api:
        for n in range(40):
            body = {**config_map(f"m{n}"), "data": {"x": "x" * 10_000}}
            assert (await api.send(ADMIN, "POST", MAPS, body))[0] == 201
        calls: list[Any] = [["DELETE", MAPS, {}, None]]
        assert (await api.send(ADMIN, "POST", "/kedge/batch", calls))[0] == 200
        assert lane_estimate(api) > 400_000


@on_loop
async def test_watches_hold_no_seat_and_are_bounded_by_user_and_in_all() -> None:
    limits = Limits(http_user_watches_max=2, http_watches_max=3, http_other_seats_max=1)
    async with flooded_api(limits) as api:
        api.empty(PriorityLevel.OTHERS)
        opened = [await watch(api, "ada"), await watch(api, "ada")]
        code, status = await api.send(ADA, "GET", f"{MAPS}?watch=1")
        assert code == 429
        assert "ada has 2 open watches already" in status["message"]
        opened.append(await watch(api, "bea"))
        code, status = await api.send(BEA, "GET", f"{MAPS}?watch=1")
        assert code == 429
        assert "3 watches are open on this server" in status["message"]
        assert (await api.send(ADA, "POST", MAPS, config_map("a")))[0] == 201
        opened[0].transport.abort()
        await eventually(lambda: len(api.server.connections.open) == 2)
        opened.append(await watch(api, "bea"))
        for each in opened:
            each.transport.abort()


async def watch(api: GuardedApi, user: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Named {user}\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    return writer


def level_of(caller: Caller, path: str) -> tuple[str, str]:
    level, flow = classify(caller, resource_path(path.encode()))
    return level.value, flow


def test_levels_and_flows_of_callers() -> None:
    agent, status = agent_of("n1"), "/api/v1/nodes/n1/status"
    plane = Caller("plane", (CONTROLLERS, AUTHENTICATED))
    assert level_of(agent, LEASE) == ("leases", agent.user)
    assert level_of(agent, status) == ("leases", agent.user)
    assert level_of(agent, f"{PODS}/a/status") == ("control-plane", agent.user)
    assert level_of(agent, LEASE.rpartition("/")[0]) == ("control-plane", agent.user)
    assert level_of(plane, LEASE) == ("leases", "plane")
    assert level_of(plane, PODS) == ("control-plane", "plane")
    assert level_of(Caller("s", (SCHEDULERS,)), PODS) == ("control-plane", "s")
    assert level_of(ADMIN, LEASE) == ("administrators", "admin")
    assert level_of(account("a", "shop"), LEASE) == ("workloads", "shop")
    assert level_of(ADA, LEASE) == ("others", "ada")
    assert level_of(ADA, status) == ("others", "ada")


@on_loop
async def test_a_turn_of_the_loop_begins_less_while_a_renewal_is_under_way() -> None:
    async with flooded_api(Limits(http_turn_units_max=10, http_lease_turn_units_max=2)) as api:
        api.empty(PriorityLevel.OTHERS)
        flow = api.server.handler.flow
        flow._turn()
        assert sum(flow.start_nowait() for _ in range(20)) == 10
        api.fill(PriorityLevel.LEASES)
        flow._turn()
        assert sum(flow.start_nowait() for _ in range(20)) == 2
        await asyncio.sleep(0)
        api.empty(PriorityLevel.LEASES)


@on_loop
async def test_gets_beyond_the_work_of_a_turn_are_answered_in_later_turns() -> None:
    async with flooded_api(Limits(http_turn_units_max=2)) as api:
        api.empty(PriorityLevel.OTHERS)
        assert (await api.send(ADA, "POST", MAPS, config_map("a")))[0] == 201
        found = await asyncio.gather(*(api.send(ADA, "GET", f"{MAPS}/a") for _ in range(20)))
        assert [code for code, _ in found] == [200] * 20
        missing = await asyncio.gather(*(api.send(ADA, "GET", f"{MAPS}/b") for _ in range(20)))
        assert [code for code, _ in missing] == [404] * 20
        assert api.server.handler.flow._requests[PriorityLevel.OTHERS].used == 0


@on_loop
async def test_deferred_gets_are_refused_when_too_many_wait() -> None:
    async with flooded_api(dataclasses.replace(SMALL, http_wait_s_max=1.0)) as api:
        api.server.handler.flow._left = 0
        sent = [asyncio.ensure_future(api.send(ADA, "GET", f"{MAPS}/a")) for _ in range(4)]
        codes = sorted([code for code, _ in await asyncio.gather(*sent)])
        assert codes == [429] * 4
        assert api.server.handler.flow._requests[PriorityLevel.OTHERS].waiting == 0


@on_loop
async def test_a_list_whose_client_does_not_read_gives_its_place_to_others_and_goes_on_later() -> None:
    limits = Limits(http_write_buffer_bytes=16 * 1024, http_list_bytes_max=1_000)
    async with flooded_api(limits) as api:
        for n in range(40):
            body = {**config_map(f"m{n}"), "data": {"x": "x" * 100_000}}
            assert (await api.send(ADMIN, "POST", MAPS, body))[0] == 201
        lane = api.server.handler.flow._lists[PriorityLevel.ADMINISTRATORS]
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)  # noqa: FBT003
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", api.port))
        head = f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Named admin,system:masters\r\n\r\n"
        await loop.sock_sendall(client, head.encode())
        await eventually(lambda: any(each.congested for each in exchanges(api)))
        await eventually(lambda: lane.used == 0)
        assert (await api.send(ADMIN, "GET", f"{MAPS}?limit=1"))[0] == 200
        received = b""
        async with asyncio.timeout(20):
            while not received.endswith(b"0\r\n\r\n"):
                received += await loop.sock_recv(client, 1 << 20)
        client.close()
        assert received.count(b'"name":"m') == 40
        await eventually(lambda: lane.used == 0 and lane.waiting == 0)


def exchanges(api: Flooded) -> list[Exchange]:
    return [each._exchange for each in api.server.connections.open if each._exchange is not None]


class CountedLists:
    """Passes requests on to a service, and counts its lists."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.kinds = service.kinds
        self.lists = 0
        self.error: Exception | None = None

    async def send(self, request: Any) -> Any:
        self.lists += isinstance(request, List)
        if self.error is not None:
            raise self.error
        return await self._service.send(request)


@on_loop
async def test_readiness_checks_at_about_the_same_time_ask_the_store_once() -> None:
    async with flooded_api(Limits(http_store_check_s=3_600.0)) as api:
        api.empty(PriorityLevel.OTHERS)
        health: Any = api.server.handler._health
        health._service = counted = CountedLists(api.service)
        answers = await asyncio.gather(*(api.send(None, "GET", "/readyz") for _ in range(10)))
        assert [code for code, _ in answers] == [200] * 10
        assert (await api.send(None, "GET", "/healthz"))[0] == 200
        assert counted.lists == 1
        health._asked_s -= 3_600.0
        counted.error = Unavailable("the disk is gone")
        code, text = await api.send(None, "GET", "/readyz")
        assert (code, b"the disk is gone" in text, counted.lists) == (500, True, 2)
        assert (await api.send(None, "GET", "/livez"))[0] == 200


@pytest.mark.parametrize(
    ("path", "header", "code"),
    [
        ("/livez", "", 200),
        ("/readyz", "", 200),
        ("/version", "", 200),
        (f"{MAPS}/a", "Authorization: Bearer a.b.c", 401),
    ],
)
@on_loop
async def test_open_paths_and_bearer_tokens_wait_for_their_turn_and_are_refused_beyond_the_queue(
    path: str, header: str, code: int
) -> None:
    async with flooded_api(Limits(http_flow_waiting_max=2)) as api:
        flow = api.server.handler.flow
        flow._left, flow._turn_due = 0, True  # no turn until the one below
        headers = [header] if header else []
        sent = [asyncio.ensure_future(api.send(None, "GET", path, None, *headers)) for _ in range(5)]
        await eventually(lambda: sum(each.done() for each in sent) == 3)
        assert [each.result()[0] for each in sent if each.done()] == [429] * 3
        flow._turn()
        assert sorted([found for found, _ in await asyncio.gather(*sent)]) == [code] * 2 + [429] * 3


@on_loop
async def test_renewals_and_probes_get_through_a_flood_without_identity() -> None:
    """A fifth of the requests of each connection shows a token, and none of them waits for the answer to another."""
    limits = Limits(http_turn_units_max=4, http_lease_turn_units_max=1, http_flow_waiting_max=20, http_wait_s_max=600.0)
    async with flooded_api(limits) as api:
        api.empty(PriorityLevel.OTHERS)
        await api.send(ADMIN, "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        agent, place = agent_of("n1"), LEASE.rpartition("/")[0]
        lease = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}
        assert (await api.send(agent, "POST", place, lease))[0] == 201
        codes: Counter[int] = Counter()
        flooding = [asyncio.ensure_future(flood(api.port, codes)) for _ in range(60)]
        await eventually(lambda: codes[429] > 100)
        answered = sum(codes.values())
        for _ in range(10):
            assert (await api.send(agent, "PATCH", LEASE, {"spec": {"leaseDurationSeconds": 5}}))[0] == 200
        assert (await api.send(None, "GET", "/livez", address="127.0.0.2"))[0] == 200
        assert sum(codes.values()) > answered, "the flood went on meanwhile"
        for each in flooding:
            each.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)


async def flood(port: int, codes: Counter[int]) -> None:
    """Send requests without identity on one connection, for ever."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    paths = ["/readyz", "/version", "/healthz", "/livez", f"{MAPS}/a"]
    try:
        for path in itertools.cycle(paths):
            token = "Authorization: Bearer a.b.c\r\n" if path.startswith("/api") else ""
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{token}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            codes[int(head.split()[1])] += 1
    finally:
        writer.close()
