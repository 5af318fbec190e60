"""A flood from one user: `python -m benchmarks.http.flood KUBECONFIG LISTED CONNECTIONS`, until it is killed.

Half of the connections get, a quarter create and a quarter list the pods of a namespace, each without a pause.
Replies of 429 count like the others, and `Retry-After` is ignored, as by a hostile client.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.http.load import LoadConnection, request, tls_connection
from benchmarks.http.verbs import pod_json
from kedge.client.http import read_kubeconfig
from kedge.limits import Limits
from kedge.server.http.server import bound_tls_buffers

CREATED = "flooded"
"""The namespace in which pods are created."""


class FloodConnection(LoadConnection):
    """Sends on, whatever the answer is, and counts codes."""

    codes: dict[int, int] = {}  # noqa: RUF012  # of all connections

    def failed(self, code: int, data: bytes) -> bool:
        del data
        self.codes[code] = self.codes.get(code, 0) + 1
        return False


def creates() -> Iterator[bytes]:
    place = f"/api/v1/namespaces/{CREATED}/pods"
    for n in itertools.count():
        yield request("POST", place, pod_json(f"flood-{n}").replace(b'"namespace":"default",', b""))


async def flood(kubeconfig: Path, listed: str, connections: int) -> None:
    address = read_kubeconfig(kubeconfig)
    place = f"/api/v1/namespaces/{listed}/pods"
    sources = [
        itertools.repeat(request("GET", f"{place}/many-00000")),
        creates(),
        itertools.repeat(request("GET", f"{place}/many-00001")),
        itertools.repeat(request("GET", place)),
    ]
    opened = [await tls_connection(address, FloodConnection) for _ in range(connections)]
    print("flooding", flush=True)
    running = [each.run(sources[n % len(sources)]) for n, each in enumerate(opened)]
    while not any(each.done() for each in running):
        await asyncio.sleep(1.0)
        print(FloodConnection.codes, flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__":
    bound_tls_buffers(Limits())
    asyncio.run(flood(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
