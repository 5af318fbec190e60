"""Get, create, merge patch and list: the server's CPU for each request, beside that of the bare server.

Short rounds alternate between the two servers, so that the noise of the machine strikes both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.http.load import LoadConnection, ServerUnderLoad, close, connect, cost_us, request, send_all
from benchmarks.store import pod_body

PODS = "/api/v1/namespaces/default/pods"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Beside:
    """CPU microseconds of the server and of the bare server, round by round."""

    ours: tuple[float, ...]
    bare: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(our / bare for our, bare in zip(self.ours, self.bare, strict=True))

    @property
    def our_us(self) -> float:
        return statistics.median(self.ours)

    @property
    def bare_us(self) -> float:
        return statistics.median(self.bare)


async def beside(
    ours: ServerUnderLoad,
    bare: ServerUnderLoad,
    concurrency: int,
    rounds: int,
    make: Callable[[int], Sequence[bytes]],
    plain: Callable[[LoadConnection], bytes],
) -> Beside:
    """Measure the requests that `make` gives for each round, and `plain` as many times on the bare server.

    `plain` gets a connection that has just had a reply, so that the constant answer can have its size.
    """
    mine, other = await connect(ours, concurrency), await connect(bare, concurrency)
    await send_all(mine, make(-1))  # warm: caches, and the code itself
    constant = plain(mine[0])
    await send_all(other, [constant] * concurrency)
    found: tuple[list[float], list[float]] = ([], [])
    for n in range(rounds):
        requests = make(n)
        our = await cost_us(ours, mine, requests)
        found[0].append(our)
        found[1].append(await cost_us(bare, other, [constant] * len(requests)))
    close([*mine, *other])
    return Beside(tuple(found[0]), tuple(found[1]))


def pod_json(name: str) -> bytes:
    return msgspec.json.encode(pod_body(name))


async def gets(ours: ServerUnderLoad, bare: ServerUnderLoad, count: int, rounds: int, concurrency: int) -> Beside:
    loader = await connect(ours, 1)
    await send_all(loader, [request("POST", PODS, pod_json(f"read-{concurrency}"))])
    close(loader)
    wanted = request("GET", f"{PODS}/read-{concurrency}")
    return await beside(
        ours, bare, concurrency, rounds, lambda _: [wanted] * count,
        lambda reply: request("GET", f"/answer/200/{reply.size}"),
    )  # fmt: skip


async def creates(ours: ServerUnderLoad, bare: ServerUnderLoad, count: int, rounds: int, concurrency: int) -> Beside:
    def make(n: int) -> list[bytes]:
        names = (f"made-{concurrency}-{n + 1}-{each}" for each in range(count))
        return [request("POST", PODS, pod_json(name)) for name in names]

    body = pod_json("made-0-0-0000")
    return await beside(
        ours, bare, concurrency, rounds, make, lambda reply: request("POST", f"/answer/201/{reply.size}", body)
    )


async def patches(
    ours: ServerUnderLoad, bare: ServerUnderLoad, count: int, rounds: int, concurrency: int = 16
) -> Beside:
    """Merge patches of one annotation, each of which changes its pod."""
    loader = await connect(ours, 8)
    await send_all(loader, [request("POST", PODS, pod_json(f"patched-{n}")) for n in range(concurrency * 4)])
    close(loader)

    def body(n: int, each: int) -> bytes:
        return msgspec.json.encode({"metadata": {"annotations": {"example/changed": f"{n}-{each:05}"}}})

    def make(n: int) -> list[bytes]:
        return [
            request("PATCH", f"{PODS}/patched-{each % (concurrency * 4)}", body(n + 1, each), MERGE_PATCH)
            for each in range(count)
        ]

    return await beside(
        ours, bare, concurrency, rounds, make,
        lambda reply: request("PATCH", f"/answer/200/{reply.size}", body(1, 1), MERGE_PATCH),
    )  # fmt: skip


async def lists(ours: ServerUnderLoad, bare: ServerUnderLoad, pods: int, rounds: int) -> Beside:
    """A list of so many pods in a namespace of their own."""
    loader = await connect(ours, 64)
    await send_all(loader[:1], [request("POST", "/api/v1/namespaces", b'{"metadata":{"name":"many"}}')])
    place = "/api/v1/namespaces/many/pods"
    bodies = (pod_json(f"many-{n:05}").replace(b'"namespace":"default",', b"") for n in range(pods))
    await send_all(loader, (request("POST", place, body) for body in bodies))
    close(loader)
    wanted = request("GET", place)
    return await beside(
        ours, bare, 1, rounds, lambda _: [wanted], lambda reply: request("GET", f"/answer/200/{reply.size}")
    )
