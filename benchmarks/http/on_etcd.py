"""Several API servers on one etcd: creates a second, spread over one, two and three servers, and their CPU."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.http.load import close, connect, kedge_server, request, send_all
from benchmarks.http.verbs import PODS, pod_json

CONCURRENCY = 64


async def creates_on_etcd(folder: Path, servers: int, count: int) -> dict[str, float]:
    # Imported here: only this part needs an etcd.
    from tests.etcd_server import etcd_server, sound_etcd, wheel_etcd

    binary = sound_etcd() or wheel_etcd()
    if binary is None:
        raise SystemExit("no etcd was found: run make venv, or leave it out with --no-etcd")
    found = {}
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(binary))
        options = ("--store", f"etcd://{etcd.endpoint}", "--pki", str(folder / "pki"))
        running = [stack.enter_context(kedge_server(folder / f"on-etcd-{n}", *options)) for n in range(servers)]
        for used in range(1, servers + 1):
            connections = [each for server in running[:used] for each in await connect(server, CONCURRENCY // used)]
            await send_all(connections, [request("POST", PODS, pod_json(f"warm-{used}-{n}")) for n in range(64)])
            requests = [request("POST", PODS, pod_json(f"made-{used}-{n}")) for n in range(count)]
            cpu = sum(each.cpu_s for each in running[:used])
            wall_s = await send_all(connections, requests)
            found[f"{used}"] = count / wall_s
            found[f"{used}_us"] = (sum(each.cpu_s for each in running[:used]) - cpu) / count * 1e6
            close(connections)
    return found
