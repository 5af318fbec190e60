"""The process of the kill test: every controller and a scheduler on a SQLite store, with a stub of the agents.

`AgentStub` renews node leases, makes bound pods ready and ends terminating ones. Each incarnation changes the template
and the size as soon as it leads, so that a kill interrupts a rollout.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.objects import deployment, node

from kedge.api.conditions import condition, is_true
from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions
from kedge.api.timestamps import format_micro_time
from kedge.api.views import DeploymentView, PodView
from kedge.cli.wiring import ControlPlane, ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.status import plan_status
from kedge.server.service import Service
from kedge.store.sqlite import SqliteStore

LIMITS = Limits(lease_s=1.0, lease_renew_s=0.7, lease_retry_s=0.2, drain_s=0.1, queue_backoff_s_max=1.0)
"""The next leader takes over within seconds."""
NODES = ("node-a", "node-b", "node-c")
WEB = Key("Deployment.apps", "default", "web")
SIZES = (6, 2, 5, 3)
_LEASE, _NODE, _POD, _DEPLOYMENT = (
    KINDS.of_key_kind(each) for each in ("Lease.coordination.k8s.io", "Node", "Pod", "Deployment.apps")
)


def size_of(life: int) -> int:
    return SIZES[life % len(SIZES)]


class AgentStub:
    """Acts as the agents of all nodes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self) -> None:
        while True:
            with suppress(OperatingError):
                await self._renew()
            for _ in range(20):
                with suppress(OperatingError):
                    await self._update_pods()
                await asyncio.sleep(0.02)

    async def _renew(self) -> None:
        for name in NODES:
            key = Key(_LEASE.key_kind, "kube-node-lease", name)
            spec = {"renewTime": format_micro_time(datetime.now(UTC))}
            if await self._client.find(key) is None:
                await self._client.create(
                    _LEASE, {"metadata": {"name": name, "namespace": key.namespace}, "spec": spec}
                )
            else:
                await self._client.patch(key, {"spec": spec})

    async def _update_pods(self) -> None:
        for pod in (await self._client.list(_POD)).objects:
            view = pod.as_view(PodView)
            if not view.spec.node_name or view.finished:
                continue
            with suppress(OperatingError):  # it changed meanwhile: retried in the next round
                if view.terminating:
                    await self._client.patch(pod.key, {"status": {"phase": "Succeeded"}}, subresource="status")
                    await self._client.delete(pod.key, DeleteOptions(uid=pod.uid, grace_s=0))
                elif not is_true(view.status.conditions, "Ready"):
                    status: dict[str, Any] = {
                        "phase": "Running",
                        "conditions": [condition("Ready", status=True, reason="")],
                    }
                    patch = plan_status(pod, status, datetime.now(UTC))
                    if patch is not None:
                        await self._client.patch(pod.key, patch, subresource="status")


async def _prepare(client: Client) -> None:
    await ensure_namespaces(client)
    for name in NODES:
        if await client.find(Key("Node", "", name)) is None:
            await client.create(_NODE, node(name, cpu="8"))
    if await client.find(WEB) is None:
        await client.create(_DEPLOYMENT, deployment("web", replicas=SIZES[0]))


async def _change(client: Client, life: int) -> None:
    """A new template and a new size."""
    found = await client.get(WEB)
    template = found.edit()["spec"]["template"]
    template["spec"]["containers"][0]["image"] = f"web:{life}"
    await client.patch(WEB, {"spec": {"replicas": size_of(life), "template": template}})


async def _is_done(client: Client) -> bool:
    view = (await client.get(WEB)).as_view(DeploymentView)
    status, want = view.status, view.spec.replicas
    pods = (await client.list(_POD)).objects
    return (
        status.observed_generation == view.generation
        and status.updated_replicas == status.available_replicas == status.replicas == want == len(pods)
    )


async def _live(path: Path, life: int, send: Connection) -> None:
    env = system_env(limits=LIMITS)
    store = await SqliteStore.open(path, env)
    service = Service(store, env)
    client = Client(DirectTransport(service), env, component="agents")
    await _prepare(client)
    plane = ControlPlane(DirectTransport(service), env, decisions=path.parent / "decisions")
    async with asyncio.TaskGroup() as group:
        group.create_task(plane.run())
        group.create_task(AgentStub(client).run())
        while not plane.leading:  # noqa: ASYNC110  there is no event to await
            await asyncio.sleep(0.01)
        await _change(client, life)
        send.send("changed")
        while not await _is_done(client):  # noqa: ASYNC110  likewise
            await asyncio.sleep(0.05)
        send.send("done")


def live(path: Path, life: int, send: Connection) -> None:
    """Run until killed; report when the change was made, and when the rollout is done."""
    asyncio.run(_live(path, life, send))
