"""Long lists leave in parts: the bytes are those of the whole list, and no turn of the loop is long."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from itertools import chain
from types import FrameType
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop

from kedge.api.kinds import KINDS
from kedge.api.quantity import parse_quantity
from kedge.api.usage import format_usage
from kedge.api.wellknown import NODE_LEASE_NAMESPACE, USAGE
from kedge.env import system_env
from kedge.server.http.list_parts import SLICE_BYTES, ListMember, indented_parts, plain_parts
from kedge.server.service import Service

_T = TypeVar("_T")
COUNT = 1_000
PODS_A_NODE = 50
CALLS_A_TURN_MAX = 15_000
"""Function calls in one turn of the loop. Conversion of every object in one turn takes more than 30,000."""
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
arrays = st.lists(st.lists(values, min_size=1, max_size=3), max_size=3)
"""Slices of one array."""


@given(st.dictionaries(st.sampled_from("abc"), values, min_size=1), arrays, st.none() | arrays, st.none() | arrays)
def test_the_parts_are_the_bytes_of_the_whole_list(
    head: dict[str, Any], items: list[list[Any]], origins: list[list[Any]] | None, removed: list[list[Any]] | None
) -> None:
    whole = {**head, "items": [each for part in items for each in part]}
    members = [ListMember(msgspec.json.encode({**head, "items": []})[:-2], _encoded(items))]
    for number, slices in enumerate((origins, removed)):
        if slices is not None:
            whole[f"more{number}"] = [each for part in slices for each in part]
            members.append(ListMember(b'],"more%d":[' % number, _encoded(slices)))
    encoded = msgspec.json.encode(whole)
    assert b"".join(chain.from_iterable(plain_parts(members))) == encoded
    assert b"".join(chain.from_iterable(indented_parts(members))) == msgspec.json.format(encoded, indent=2)


def _encoded(slices: list[list[Any]]) -> list[list[bytes]]:
    return [[msgspec.json.encode(part)[1:-1]] for part in slices]


async def calls_in_the_longest_turn(work: Awaitable[_T]) -> tuple[int, _T]:
    """The most function calls, Python's and C's, in one turn of the loop while `work` runs."""
    calls, longest = 0, 0
    loop, running = asyncio.get_running_loop(), True

    def count(frame: FrameType, event: str, argument: object) -> None:
        del frame, argument
        nonlocal calls
        calls += event in ("call", "c_call")

    def turn() -> None:
        nonlocal calls, longest
        calls, longest = 0, max(longest, calls)
        if running:
            loop.call_soon(turn)

    turn()
    sys.setprofile(count)
    try:
        found = await work
    finally:
        sys.setprofile(None)
        running = False
    return max(longest, calls), found


def chunks_of(reply: bytes) -> list[bytes]:
    _, _, rest = reply.partition(b"\r\n\r\n")
    found: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert found.pop() == b""  # the end of the reply
    return found


async def make_events(service: Service) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    for number in range(COUNT):
        body = {"metadata": {"name": f"e{number}"}, "involvedObject": about, "message": "m" * 300, "reason": "R"}
        await service.create(KINDS.of_key_kind("Event"), body, namespace="default")


async def make_pods_with_usage(service: Service) -> None:
    used = {"c": {"cpu": parse_quantity("5m"), "memory": parse_quantity("64Mi")}}
    for first in range(0, COUNT, PODS_A_NODE):
        node = f"n{first}"
        usage: dict[str, Any] = {}
        for number in range(first, first + PODS_A_NODE):
            spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
            pod = {"metadata": {"name": f"p{number}"}, "spec": spec}
            usage[(await service.create(KINDS.of_key_kind("Pod"), pod, namespace="default")).object.uid] = used
        report = format_usage(system_env().now(), 15, usage)
        lease = {"metadata": {"name": node, "annotations": {USAGE: report}}}
        await service.create(KINDS.of_key_kind("Lease.coordination.k8s.io"), lease, namespace=NODE_LEASE_NAMESPACE)


@pytest.mark.parametrize(
    ("make", "path", "accept"),
    [
        (make_events, "/api/v1/events?pretty=true", "application/json"),
        (make_events, "/api/v1/events", TABLE),
        (make_events, "/api/v1/events", PARTIAL),
        (make_events, "/api/v1/events?pretty=1", TABLE),
        (make_events, "/apis/events.k8s.io/v1/events", "application/json"),
        (make_events, "/apis/events.k8s.io/v1/events", TABLE),
        (make_events, "/apis/events.k8s.io/v1/events?pretty=true", "application/json"),
        (make_pods_with_usage, "/apis/metrics.k8s.io/v1beta1/pods", "application/json"),
    ],
)
def test_no_turn_of_the_loop_makes_a_whole_list(
    make: Callable[[Service], Awaitable[None]], path: str, accept: str
) -> None:
    @on_loop
    async def check() -> None:
        async with local_api() as (server, port):
            for name in ("default", NODE_LEASE_NAMESPACE):
                await server.handler._service.create(KINDS.of_key_kind("Namespace"), {"metadata": {"name": name}})
            await make(server.handler._service)
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
            calls, reply = await calls_in_the_longest_turn(exchange(port, head.encode(), end=False))
        chunks = chunks_of(reply)
        shown = json.loads(b"".join(chunks))
        assert len(shown.get("items") or shown["rows"]) == COUNT
        assert calls < CALLS_A_TURN_MAX
        assert len(chunks) > 3
        assert max(map(len, chunks)) < 2 * SLICE_BYTES

    check()


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/api/v1/events", "application/json"),
        ("/api/v1/events?pretty=true", "application/json"),
        ("/apis/events.k8s.io/v1/events", "application/json"),
        ("/api/v1/events?includeObject=Object", TABLE),
        ("/api/v1/events", PARTIAL),
    ],
)
def test_few_large_objects_leave_in_slices_too(path: str, accept: str) -> None:
    @on_loop
    async def check() -> None:
        size, count = SLICE_BYTES // 2, 6
        async with local_api() as (server, port):
            service = server.handler._service
            await service.create(KINDS.of_key_kind("Namespace"), {"metadata": {"name": "default"}})
            for number in range(count):
                metadata = {"name": f"e{number}", "annotations": {"example.com/x": "x" * size}}
                about = {"kind": "Pod", "name": "p", "namespace": "default"}
                body = {"metadata": metadata, "involvedObject": about, "message": "m", "reason": "R"}
                await service.create(KINDS.of_key_kind("Event"), body, namespace="default")
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
            reply = await exchange(port, head.encode(), end=False)
        chunks = chunks_of(reply)
        shown = json.loads(b"".join(chunks))
        assert len(shown.get("items") or shown["rows"]) == count
        assert len(chunks) >= count // 2
        assert max(map(len, chunks)) < 2 * SLICE_BYTES

    check()
