"""The node's own place in the API: registered once, its lease renewed, and an eye on whether it is still the same node.

Its uid is the incarnation. A node that has to be registered anew holds none of its former claims, so nothing of its
former self may run by then: `clear` is awaited before the new node is created.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kedge.agent.core.usage import UsageMeter
from kedge.api.conditions import condition, is_true
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.timestamps import format_micro_time
from kedge.api.views import NodeView
from kedge.api.wellknown import HOSTNAME_LABEL, LEASE_KIND, NODE_KIND, NODE_LEASE_NAMESPACE, USAGE
from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Conflict, NotFound, OperatingError
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.status import plan_status

_UNRECORDED = WriteOptions(recorded=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an agent says of the machine it runs on."""

    name: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    boot_id: str = ""
    addresses: tuple[str, ...] = ()


class NodeRegistration:
    """Keeps the node registered and its lease alive."""

    def __init__(
        self,
        client: Client,
        env: Env,
        machine: Machine,
        caches: CacheSet,
        meter: UsageMeter,
        *,
        clear: Callable[[], Awaitable[None]],
        on_contact: Callable[[], None],
    ) -> None:
        self._client = client
        self._env = env
        self._machine = machine
        self._caches = caches
        self._meter = meter
        self._clear = clear
        self._on_contact = on_contact
        self.name = machine.name
        self._node_kind: Kind = client.kinds.of_key_kind(NODE_KIND)
        self._lease_kind: Kind = client.kinds.of_key_kind(LEASE_KIND)
        self._key = Key(NODE_KIND, "", machine.name)
        self._lease_key = Key(LEASE_KIND, NODE_LEASE_NAMESPACE, machine.name)
        self._lease: Object | None = None
        self._changed = asyncio.Event()
        self._said_s = -math.inf
        """When it last contradicted what was said of the node."""
        self.uid = ""
        """The incarnation; empty until registered."""
        self.contact_s = -math.inf
        """When the last renewal that the API confirmed was sent, by this machine's clock. None was before the first: an
        agent that comes back does not know for how long its node has been silent."""
        gauge = env.metrics.gauge("kedge_agent_contact_seconds", "Since the API last confirmed a renewal")
        gauge.set_function(lambda: env.monotonic() - self.contact_s)

    @property
    def in_contact(self) -> bool:
        """Whether this node is known to be heard: nobody can hold silence against it yet."""
        return self._env.monotonic() - self.contact_s < self._env.limits.node_suspect_s

    def keep_s(self) -> float:
        """What is left of the time that this node may be silent before its at-most-one pods must have stopped."""
        return self.contact_s + self._env.limits.agent_contact_s - self._env.monotonic()

    # -- registration ------------------------------------------------------------------------------

    async def register(self) -> None:
        """Find the node as this agent's former self left it, or create it. Tries until it succeeds."""
        while True:
            try:
                node = await self._client.find(self._key)
                if node is None:
                    await self._clear()
                    node = await self._create()
                if node is not None and node.metadata.deletion_timestamp is None:
                    self.uid = node.uid
                    await self._say_ready(node)
                    return
            except OperatingError:
                pass  # whatever it was: without a node there is nothing else to do
            await asyncio.sleep(jittered(self._env.limits.agent_retry_s, self._env.random))

    async def _create(self) -> Object | None:
        machine = self._machine
        body = {
            "metadata": {
                "name": machine.name,
                "labels": {HOSTNAME_LABEL: machine.name, **machine.labels},
            },
            "spec": {"taints": [dict(each) for each in machine.taints]} if machine.taints else {},
            "status": self._status(),
        }
        try:
            return (await self._client.create(self._node_kind, body)).object
        except AlreadyExists:
            return None  # perhaps our own: look again

    def _status(self) -> dict[str, Any]:
        machine = self._machine
        return {
            "capacity": dict(machine.capacity),
            "allocatable": dict(machine.capacity),
            "conditions": [condition("Ready", status=True, reason="AgentReady", message="the agent is at work")],
            "addresses": [{"type": "InternalIP", "address": each} for each in machine.addresses],
            "nodeInfo": {"bootID": machine.boot_id, "kubeletVersion": "kedge"},
        }

    async def _say_ready(self, node: Object) -> None:
        """Say again what only the agent knows: the lifecycle may have written that nobody knows."""
        view = node.as_view(NodeView)
        told = self._status()
        if is_true(view.status.conditions, "Ready") and view.status.node_info.boot_id == self._machine.boot_id:
            return
        told.pop("allocatable")  # somebody may have set some of it aside
        patch = plan_status(node, told, self._env.now())
        if patch is not None:
            self._said_s = self._env.monotonic()
            await self._client.patch(self._key, patch, subresource="status")

    # -- heartbeats --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease, and register anew when the node is gone. Never returns."""
        cache = self._caches.cache(self._node_kind, field_selector=f"metadata.name={self._machine.name}")
        subscription = cache.subscribe(self._on_change, name="agent")
        try:
            while True:
                # 1. The agent registers. 2. Somebody removes the node. 3. The cache lists for the first time, finds
                # nothing, and has no change to tell of. So what it shows is looked at, not only what it tells.
                if cache.synced and self._is_in_doubt(cache.get(self._key).value):
                    self._changed.set()
                await self._beat()
                pause_s = self._env.limits.node_renew_s * self._env.random.uniform(0.9, 1.0)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                        # Whoever contradicts at once goes by something old, and would do so again: no sooner than
                        # with the next beat. 1. Leases are late. 2. The lifecycle says that nobody knows. 3. The agent
                        # says that it is ready. 4. The lifecycle sees that, and still no lease.
                        await asyncio.sleep(self._said_s + self._env.limits.node_renew_s - self._env.monotonic())
                except TimeoutError:
                    continue
        finally:
            subscription.close()

    def _on_change(self, change: CacheChange) -> None:
        if self._is_in_doubt(change.new):
            self._changed.set()

    def _is_in_doubt(self, node: Object | None) -> bool:
        """Whether what the cache shows is not this node, registered and known to be ready."""
        return node is None or node.uid != self.uid or not is_true(node.as_view(NodeView).status.conditions, "Ready")

    async def _beat(self) -> None:
        limits = self._env.limits
        try:
            if self._changed.is_set():
                self._changed.clear()
                try:
                    await self._look()
                except OperatingError:
                    self._changed.set()  # nothing was seen: no other event will tell of it again
                    raise
            await self._meter.measure()
            sent_s = self._env.monotonic()
            async with asyncio.timeout(limits.node_renew_s):
                await self._renew()
            self.contact_s = sent_s
            self._on_contact()
        except (TimeoutError, OperatingError):
            self._lease = None  # read it again
            await asyncio.sleep(jittered(limits.agent_retry_s, self._env.random))

    async def _look(self) -> None:
        """See at the authority whether the node is still this one, and known to be ready."""
        node = await self._client.find(self._key)
        if node is None or node.uid != self.uid:
            self.uid = ""
            await self._clear()
            await self.register()
        else:
            await self._say_ready(node)

    async def _renew(self) -> None:
        now = format_micro_time(self._env.now())
        if self._lease is None:
            self._lease = await self._client.find(self._lease_key)
        if self._lease is None:
            spec = {
                "holderIdentity": self._machine.name,
                "leaseDurationSeconds": int(self._env.limits.node_lease_s),
                "renewTime": now,
            }
            metadata = {"name": self._machine.name, "namespace": NODE_LEASE_NAMESPACE}
            self._lease = (await self._client.create(self._lease_kind, {"metadata": metadata, "spec": spec})).object
            return
        body = self._lease.edit()
        body["metadata"]["resourceVersion"] = str(self._lease.revision)
        body["spec"] = {**body.get("spec", {}), "holderIdentity": self._machine.name, "renewTime": now}
        self._say_usage(body["metadata"])
        try:
            self._lease = (await self._client.update(self._lease_key, body, options=_UNRECORDED)).object
        except (Conflict, NotFound):
            self._lease = None
            raise

    def _say_usage(self, metadata: dict[str, Any]) -> None:
        """Put the report on the lease, or take away one that is no longer true."""
        text = self._meter.text
        notes: dict[str, str] = metadata.get("annotations") or {}
        if text:
            metadata["annotations"] = {**notes, USAGE: text}
        elif USAGE in notes:
            metadata["annotations"] = {name: said for name, said in notes.items() if name != USAGE}
