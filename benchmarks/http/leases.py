"""How long the renewal of a node's lease takes: on a quiet server, and while another user floods it.

Each agent has a connection and an identity of its own and renews a few times a second; the flood is a second process.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.http.flood import CREATED
from benchmarks.http.load import (
    LoadConnection,
    ServerUnderLoad,
    close,
    connect,
    printed,
    request,
    send_all,
    started,
    tls_connection,
)
from benchmarks.http.verbs import pod_json
from kedge.api.access import NODES
from kedge.client.http import read_kubeconfig
from kedge.server.http.certificates import Authority

USER = "flood"
AGENTS = 10
PAUSE_S = 0.05
LISTED = "listed"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Renewal(NamedTuple):
    """Seconds of one renewal, and CPU seconds of the server meanwhile: these do not depend on other processes."""

    took_s: float
    server_cpu_s: float


@dataclass(frozen=True, slots=True)
class Renewals:
    """Renewals of one run."""

    quiet: tuple[Renewal, ...]
    flooded: tuple[Renewal, ...]

    @property
    def quiet_p99_ms(self) -> float:
        return _p99_ms(each.took_s for each in self.quiet)

    @property
    def flood_p99_ms(self) -> float:
        return _p99_ms(each.took_s for each in self.flooded)

    @property
    def flood_cpu_p99_ms(self) -> float:
        return _p99_ms(each.server_cpu_s for each in self.flooded)


def _p99_ms(values_s: Iterable[float]) -> float:
    ordered = sorted(values_s)
    return round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3, 3)


async def renewals(server: ServerUnderLoad, state: Path, *, pods: int, connections: int, seconds: float) -> Renewals:
    """Renew for so many seconds without and with a flood of lists of `pods` pods, creates and gets."""
    kubeconfigs = _identities(server, state)
    await _prepare(server, pods)
    agents = [await tls_connection(read_kubeconfig(each), LoadConnection) for each in kubeconfigs[1:]]
    await _renew(server, agents, 1.0)
    quiet = await _renew(server, agents, seconds)
    log = state.with_suffix(".flood.log")
    with started("-m", "benchmarks.http.flood", str(kubeconfigs[0]), LISTED, str(connections), log=log) as flood:
        printed(flood, log, lambda text: "flooding" in text)
        await _renew(server, agents, 2.0)
        under = await _renew(server, agents, seconds)
        if flood.poll() is not None:
            raise RuntimeError(f"the flood ended: {log.read_text()}")
    print(f"flood, replies so far by code: {log.read_text().splitlines()[-1]}")
    close(agents)
    return Renewals(quiet, under)


def _identities(server: ServerUnderLoad, state: Path) -> list[Path]:
    """Kubeconfigs of the user that floods and of the agents."""
    now = datetime.now(UTC)
    authority = Authority.ensure(state, now)
    url = f"https://{server.address.host}:{server.address.port}"
    users = [(USER, ()), *((f"system:node:load-{n}", (NODES,)) for n in range(AGENTS))]
    found = []
    for number, (user, groups) in enumerate(users):
        found.append(state / f"load-{number}.kubeconfig")
        authority.ensure_kubeconfig(found[-1], url, user, groups, now)
    return found


async def _prepare(server: ServerUnderLoad, pods: int) -> None:
    loader = await connect(server, 32)
    spaces = [msgspec.json.encode({"metadata": {"name": name}}) for name in (LISTED, CREATED)]
    await send_all(loader[:1], [request("POST", "/api/v1/namespaces", each) for each in spaces])
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
    binding = msgspec.json.encode({"metadata": {"name": USER}, "roleRef": role, "subjects": [user]})
    await send_all(loader[:1], [request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)])
    leases = [msgspec.json.encode(_lease(n, 0)) for n in range(AGENTS)]
    await send_all(loader[:1], [request("POST", _LEASES, each) for each in leases])
    place = f"/api/v1/namespaces/{LISTED}/pods"
    bodies = (pod_json(f"many-{n:05}").replace(b'"namespace":"default",', b"") for n in range(pods))
    await send_all(loader, (request("POST", place, body) for body in bodies))
    close(loader)


def _lease(agent: int, renewal: int) -> dict[str, object]:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": f"load-{agent}", "leaseDurationSeconds": 40, "leaseTransitions": renewal}
    return {"metadata": {"name": f"load-{agent}"}, "spec": {**spec, "renewTime": stamp}}


async def _renew(server: ServerUnderLoad, agents: list[LoadConnection], seconds: float) -> tuple[Renewal, ...]:
    until_s = time.perf_counter() + seconds
    counts = itertools.count(1)
    found = await asyncio.gather(*(_renew_one(server, each, n, until_s, counts) for n, each in enumerate(agents)))
    return tuple(one for each in found for one in each)


async def _renew_one(
    server: ServerUnderLoad, connection: LoadConnection, agent: int, until_s: float, counts: Iterator[int]
) -> list[Renewal]:
    found = []
    await asyncio.sleep(PAUSE_S * agent / AGENTS)
    while time.perf_counter() < until_s:
        sent = request("PUT", f"{_LEASES}/load-{agent}", msgspec.json.encode(_lease(agent, next(counts))))
        began_s, cpu_s = time.perf_counter(), server.cpu_s
        await asyncio.wait_for(connection.run(iter([sent])), 60)
        found.append(Renewal(time.perf_counter() - began_s, server.cpu_s - cpu_s))
        await asyncio.sleep(PAUSE_S)
    return found
