"""The Services of a node: follows Services, EndpointSlices and Nodes, and keeps proxies, addresses and names in step.

`plan` decides which ports there are. Without contact to the API it keeps the last state. Nothing here is on the path of
a pod's start but the names, which are read from memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kedge.agent.process.services.addresses import ServiceAddresses
from kedge.agent.process.services.names import HostsFiles, service_variables
from kedge.agent.process.services.plan import ServiceName, ServicePortPlan, plan_ports
from kedge.agent.process.services.proxy import ProxyShared, ServicePortProxy
from kedge.api.views import EndpointSliceView, NodeView, ServiceView
from kedge.api.wellknown import ENDPOINT_SLICE_KIND, NODE_KIND, SERVICE_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.runtime.cache import CacheSet

_LOG = logging.getLogger(__name__)
PortKey = tuple[ServiceName, int]


class ServiceProxies:
    """The Services of one node. `run` it beside the agent; processes get `variables` and `hosts_file`."""

    def __init__(self, client: Client, env: Env, folder: Path, *, boot_id: str) -> None:
        """`folder` is the node's own, `boot_id` that of this machine."""
        self._client = client
        self._env = env
        self._boot_id = boot_id
        self._caches = CacheSet(client, env)
        self._addresses = ServiceAddresses(folder.absolute(), services_max=env.limits.services_max)
        self._hosts = HostsFiles(folder.absolute())
        self._plans: tuple[ServicePortPlan, ...] = ()
        self._proxies: dict[PortKey, ServicePortProxy] = {}
        self._changed = asyncio.Event()
        self._synced = asyncio.Event()
        self._left_out: list[ServiceName] = []
        metrics = env.metrics
        self._shared = ProxyShared(
            env, metrics.counter("kedge_service_connections_total", "Connections to Services, by result", ("result",))
        )
        metrics.gauge("kedge_service_connections_open", "Open connections to Services").set_function(
            lambda: self._shared.open
        )
        metrics.gauge("kedge_service_addresses", "Services with an address on this node").set_function(
            lambda: len(self._addresses.held)
        )

    # -- names of processes ------------------------------------------------------------------------

    def variables(self, namespace: str) -> Mapping[str, str]:
        """Environment variables for a process of a namespace."""
        return service_variables(namespace, self._plans, self._addresses.held)

    def hosts_file(self, namespace: str) -> Path:
        """The hosts file for processes of a namespace; from now on it is kept up to date."""
        self._hosts.write(namespace, self._addresses.held)
        return self._hosts.path(namespace)

    async def wait_synced(self) -> None:
        """Wait for the first list of Services, within a bound: a process without a name is better than none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._env.limits.service_sync_s):
                await self._synced.wait()

    # -- work --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow changes until cancelled; then every proxy ends."""
        limits = self._env.limits
        kinds = self._client.kinds
        caches = [
            self._caches.cache(kinds.of_key_kind(each)) for each in (SERVICE_KIND, ENDPOINT_SLICE_KIND, NODE_KIND)
        ]
        services, slices, nodes = caches
        for cache in caches:
            cache.subscribe(lambda _: self._changed.set(), name="services")
        try:
            while True:
                with suppress(OperatingError):
                    await self._caches.wait_synced(within_s=limits.agent_audit_s)
                    break  # not before: an address must not be dropped because its Service is not listed yet
            while True:
                self._changed.clear()
                plans = plan_ports(
                    [each.as_view(ServiceView) for each in services.list().value],
                    [each.as_view(EndpointSliceView) for each in slices.list().value],
                    {each.key.name: each.as_view(NodeView).status.node_info.boot_id for each in nodes.list().value},
                    self._boot_id,
                )
                await self._apply(plans)
                self._synced.set()
                await self._wait_change()
        finally:
            await self._caches.stop()
            await asyncio.gather(*(each.close() for each in self._proxies.values()))
            self._proxies.clear()

    async def _wait_change(self) -> None:
        """Wait for a change, and a moment for more of them; look again if a port could not be listened on."""
        limits = self._env.limits
        is_waiting = any(each.plan.ready and not each.listens for each in self._proxies.values())
        try:
            async with asyncio.timeout(limits.service_retry_s if is_waiting else None):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(limits.service_settle_s)

    async def _apply(self, plans: tuple[ServicePortPlan, ...]) -> None:
        left_out = self._addresses.keep(each.service for each in plans)
        if left_out != self._left_out:
            self._left_out = left_out
            names = ", ".join("/".join(each) for each in left_out)
            _LOG.warning("Services without an address on this node, because too many have one: %s", names or "none now")
        self._plans = plans
        for namespace in self._hosts.namespaces():
            self._hosts.write(namespace, self._addresses.held)
        wanted = {(each.service, each.port): each for each in plans if each.service in self._addresses.held}
        for key in [key for key in self._proxies if key not in wanted]:
            await self._proxies.pop(key).close()
        for key, plan in wanted.items():
            address = self._addresses.held[plan.service]
            found = self._proxies.get(key)
            if found is None or found.address != address:
                if found is not None:
                    await found.close()
                found = self._proxies[key] = ServicePortProxy(self._shared, address, plan.port, plan)
            await found.update(plan)
