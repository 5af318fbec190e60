"""Registration of the node: its object is created once, its lease renewed, and its identity verified.

The uid of the node object is the incarnation. A new incarnation holds none of the former claims, so no process of the
former incarnation may run by then: `clear` is awaited before the new node is created.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kedge.agent.core.driver import NodeCondition
from kedge.agent.core.usage import UsageMeter
from kedge.api.conditions import condition, is_true
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.quantity import parse_quantity
from kedge.api.requests import WriteOptions
from kedge.api.timestamps import format_micro_time, format_time
from kedge.api.views import NodeSystemInfo, NodeView
from kedge.api.wellknown import HOSTNAME_LABEL, LEASE_KIND, NODE_KIND, NODE_LEASE_NAMESPACE, USAGE
from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Conflict, NotFound, OperatingError
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.status import plan_status

_UNRECORDED = WriteOptions(recorded=False)
_NO_INFO = NodeSystemInfo()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties of the machine that an agent runs on."""

    name: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    boot_id: str = ""
    system: NodeSystemInfo = _NO_INFO
    """Its hardware and software; the identity of the boot is in `boot_id`."""
    addresses: tuple[str, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    """Its abilities and inabilities, for people and for `kubectl describe node`."""
    endpoint_port: int = 0
    """The port of the agent's endpoint for logs and exec; 0 if it has none."""


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
        self.address = machine.addresses[0] if machine.addresses else ""
        self.capacity = {name: parse_quantity(amount) for name, amount in machine.capacity.items()}
        self._node_kind: Kind = client.kinds.of_key_kind(NODE_KIND)
        self._lease_kind: Kind = client.kinds.of_key_kind(LEASE_KIND)
        self._key = Key(NODE_KIND, "", machine.name)
        self._lease_key = Key(LEASE_KIND, NODE_LEASE_NAMESPACE, machine.name)
        self._lease: Object | None = None
        self._changed = asyncio.Event()
        self._ready_written_s = -math.inf
        """When it last wrote Ready over another writer's condition."""
        self.uid = ""
        """The incarnation; empty until registered."""
        self.contact_s = -math.inf
        """When the last confirmed renewal was sent, by this machine's clock; -inf before the first: a restarted agent
        does not know for how long its node has been silent."""
        gauge = env.metrics.gauge("kedge_agent_contact_seconds", "Time since the API last confirmed a renewal")
        gauge.set_function(lambda: env.monotonic() - self.contact_s)

    @property
    def in_contact(self) -> bool:
        """Whether the last heartbeat is so recent that the node cannot be suspected yet."""
        return self._env.monotonic() - self.contact_s < self._env.limits.node_suspect_s

    def keep_s(self) -> float:
        """How much longer this node may be without contact before its at-most-one pods must have stopped."""
        return self.contact_s + self._env.limits.agent_contact_s - self._env.monotonic()

    # -- registration ------------------------------------------------------------------------------

    async def register(self) -> None:
        """Find the node object that an earlier run of this agent left, or create it. Tries until it succeeds."""
        while True:
            try:
                node = await self._client.find(self._key)
                if node is None:
                    await self._clear()
                    node = await self._create()
                if node is not None and node.metadata.deletion_timestamp is None:
                    self.uid = node.uid
                    await self._write_endpoint(node)
                    await self._write_ready(node)
                    return
            except OperatingError:
                pass  # without a node there is nothing else to do: try again
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
            return None  # perhaps our own create: read again

    def _status(self) -> dict[str, Any]:
        machine, info = self._machine, self._node_info()
        # Times are written with a condition that changes, never for their own sake: the lease is the heartbeat.
        now = format_time(self._env.now())
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        return {
            "capacity": dict(machine.capacity),
            "allocatable": dict(machine.capacity),
            "conditions": [
                condition("Ready", status=True, reason="AgentReady", message="the agent is running") | times,
                *(
                    condition(each.type, status=each.status, reason=each.reason, message=each.message) | times
                    for each in machine.conditions
                ),
            ],
            "addresses": [{"type": "InternalIP", "address": each} for each in machine.addresses],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": machine.endpoint_port}},
            # Every field is written, the empty ones too: typed clients require all of them.
            "nodeInfo": {each.encode_name: getattr(info, each.name) for each in msgspec.structs.fields(info)},
        }

    def _node_info(self) -> NodeSystemInfo:
        machine = self._machine
        return msgspec.structs.replace(machine.system, boot_id=machine.boot_id, kubelet_version="kedge")

    async def _write_endpoint(self, node: Object) -> None:
        """Write where API servers find this run of the agent: another run had another port."""
        machine = self._machine
        status = self._status()
        shown = node.as_view(NodeView).status
        addresses = tuple(each.address for each in shown.addresses if each.type == "InternalIP")
        if (shown.daemon_endpoints.kubelet_endpoint.port, addresses) != (machine.endpoint_port, machine.addresses):
            found = {name: status[name] for name in ("daemonEndpoints", "addresses")}
            await self._client.patch(self._key, {"status": found}, subresource="status")

    async def _write_ready(self, node: Object) -> None:
        """Write Ready again: the node lifecycle may have written Unknown."""
        view = node.as_view(NodeView)
        reported = self._status()
        shown = {(each.type, each.status == "True", each.message) for each in view.status.conditions}
        same = all((each.type, each.status, each.message) in shown for each in self._machine.conditions)
        same = same and view.status.node_info == self._node_info()
        if same and is_true(view.status.conditions, "Ready"):
            return
        reported.pop("allocatable")  # an administrator may have reserved a part of it
        patch = plan_status(node, reported, self._env.now())
        if patch is not None:
            self._ready_written_s = self._env.monotonic()
            await self._client.patch(self._key, patch, subresource="status")

    # -- heartbeats --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the lease, and register again when the node is gone. Never returns."""
        cache = self._caches.cache(self._node_kind, field_selector=f"metadata.name={self._machine.name}")
        subscription = cache.subscribe(self._on_change, name="agent")
        try:
            while True:
                # 1. The agent registers. 2. The node is deleted. 3. The cache lists for the first time, finds nothing,
                # and notifies of no change. So the content of the cache is checked, not only its changes.
                if cache.synced and self._needs_verification(cache.get(self._key).value):
                    self._changed.set()
                await self._heartbeat()
                pause_s = jittered(self._env.limits.node_renew_s, self._env.random, (0.9, 1.0))
                try:
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                        # At most one correction per heartbeat, or the two writers overwrite each other in a loop:
                        # 1. Lease renewals are late. 2. The lifecycle writes Unknown. 3. The agent writes Ready. 4. The
                        # lifecycle sees that, and still no renewal.
                        await asyncio.sleep(
                            self._ready_written_s + self._env.limits.node_renew_s - self._env.monotonic()
                        )
                except TimeoutError:
                    continue
        finally:
            subscription.close()

    def _on_change(self, change: CacheChange) -> None:
        if self._needs_verification(change.new):
            self._changed.set()

    def _needs_verification(self, node: Object | None) -> bool:
        """Whether the cached node is not this incarnation, or not Ready."""
        return node is None or node.uid != self.uid or not is_true(node.as_view(NodeView).status.conditions, "Ready")

    async def _heartbeat(self) -> None:
        limits = self._env.limits
        try:
            if self._changed.is_set():
                self._changed.clear()
                try:
                    await self._verify()
                except OperatingError:
                    self._changed.set()  # it was not read, and no further event will come
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

    async def _verify(self) -> None:
        """Read the node from the API server: register again if the incarnation is another, else correct Ready."""
        node = await self._client.find(self._key)
        if node is None or node.uid != self.uid:
            self.uid = ""
            await self._clear()
            await self.register()
        else:
            await self._write_ready(node)

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
        self._set_usage(body["metadata"])
        try:
            self._lease = (await self._client.update(self._lease_key, body, options=_UNRECORDED)).object
        except (Conflict, NotFound):
            self._lease = None
            raise

    def _set_usage(self, metadata: dict[str, Any]) -> None:
        """Set the usage report on the lease, or remove an outdated one."""
        text = self._meter.text
        notes: dict[str, str] = metadata.get("annotations") or {}
        if text:
            metadata["annotations"] = {**notes, USAGE: text}
        elif USAGE in notes:
            metadata["annotations"] = {name: value for name, value in notes.items() if name != USAGE}
