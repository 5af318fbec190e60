"""Whole runs of the fuzzers against one server, and what must hold after them."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

from tests.fuzz.identities import IDENTITIES, WEIGHTS
from tests.fuzz.own_paths import SESSION
from tests.fuzz.peer import FAULTS_MAX, Peer, Tally
from tests.fuzz.raw_cases import MAPS, RawCase, raw_case
from tests.fuzz.requests import FuzzRequest, fuzz_request

from kedge.api.kinds import KINDS, Kind
from kedge.server.http.discovery import verbs_of
from kedge.server.http.list_parts import SLICE_ITEMS

CORPUS = Path(__file__).parent / "corpus"
"""Every input that ever broke something, as bytes of one connection."""
AT_ONCE = 16
_BURST = 50
_KEPT = frozenset({"Namespace", "ClusterRole", "ClusterRoleBinding"})
"""Kinds whose objects requests need to succeed; the fuzzer creates few of them."""


def corpus() -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(CORPUS.glob("*.http"))]


async def send_raw_cases(peer: Peer, cases: list[RawCase]) -> None:
    """Send cases, several at once."""
    left = iter(cases)

    async def send_some() -> None:
        for case in left:
            if len(peer.tally.faults) >= FAULTS_MAX:
                return
            await peer.send_raw(case)

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))


async def fuzz_raw(peer: Peer, seed: int, count: int) -> None:
    source = random.Random(f"raw {seed}")
    await send_raw_cases(peer, [raw_case(source) for _ in range(count)])


async def fuzz_requests(peer: Peer, seed: int, count: int) -> None:
    source = random.Random(f"requests {seed}")
    every = [fuzz_request(source) for _ in range(count)]
    bursts = [every[first : first + _BURST] for first in range(0, count, _BURST)]
    callers = source.choices(IDENTITIES, WEIGHTS, k=len(bursts))
    left = iter([
        ([each.with_headers(caller.header(source)) for each in burst], caller)
        for burst, caller in zip(bursts, callers, strict=True)
    ])  # fmt: skip

    async def send_some() -> None:
        for burst, caller in left:
            if len(peer.tally.faults) >= FAULTS_MAX:
                return
            await peer.send_requests(burst, caller)

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))


async def prepare(peer: Peer) -> None:
    """A namespace and objects that cases refer to: so many that their list is streamed."""
    bodies = [("/api/v1/namespaces", "default"), (MAPS.decode(), "a"), ("/api/v1/nodes", "node-1")]
    bodies += [(MAPS.decode(), f"map-{n}") for n in range(SLICE_ITEMS)]
    json_type = {"Content-Type": "application/json"}
    await peer.send_requests(
        [
            FuzzRequest("POST", path, json_type, json.dumps({"metadata": {"name": name}}).encode())
            for path, name in bodies
        ]
    )


async def open_page(peer: Peer) -> None:
    """Begin a session with the page, for the requests of its data."""
    link = json.loads((await _exchange(peer, b"POST /ui/link")).partition(b"\r\n\r\n")[2])["path"]
    reply = await _exchange(peer, b"GET " + link.encode())
    peer.session = reply.partition(b"kedge-ui=")[2].partition(b";")[0].decode()
    assert len(peer.session) == len(SESSION)


async def _exchange(peer: Peer, line: bytes) -> bytes:
    reader, writer = await peer.connect()
    writer.write(b"%b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % line)
    received = await reader.read()
    writer.close()
    return received


def _collection(kind: Kind, namespace: str) -> str:
    root = "/apis" if "/" in kind.api_version else "/api"
    return f"{root}/{kind.api_version}{f'/namespaces/{namespace}' if namespace else ''}/{kind.plural}"


async def delete_created(peer: Peer) -> None:
    """Delete the objects of a round, so that what the server holds after it is not what it was asked to store."""
    deletes = [
        FuzzRequest("DELETE", f"{_collection(kind, namespace)}?gracePeriodSeconds=0", {}, b"")
        for kind in KINDS
        if "deletecollection" in verbs_of(kind) and kind.key_kind not in _KEPT
        for namespace in (("default", "kube-system") if kind.namespaced else ("",))
    ]
    await peer.send_requests(deletes)


async def check_nothing_half_written(peer: Peer) -> None:
    """No object exists of a request that was cut off, or that stood inside another one's body."""
    received = await _exchange(peer, b"GET " + MAPS)
    assert received.startswith(b"HTTP/1.1 200")
    assert b'"name":"half-' not in received, "a request that was cut off was carried out"
    assert b'"name":"smuggled-' not in received, "a body was taken for a request"


def check_tally(tally: Tally) -> None:
    assert not tally.faults, "\n".join(tally.faults)
