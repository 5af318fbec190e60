"""The means that the pod workers of one node share: the API, the driver, the node, and counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.agent.core.account_tokens import ROOT_AUTHORITY, AccountTokens, ApiAccess
from kedge.agent.core.config import Surroundings
from kedge.agent.core.driver import ContainerProcess, Driver
from kedge.agent.core.node import NodeRegistration
from kedge.agent.core.pod_records import AgentRecords
from kedge.api.pod_references import references
from kedge.api.views import NodeAllocationView, NodeView, PodView
from kedge.api.wellknown import CONFIG_MAP_KIND, NODE_ALLOCATION_KIND, NODE_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.placement.ledger import ClaimState, Ledger, ledger_of


class WorkerContext:
    """The means that the workers of one node share."""

    def __init__(
        self,
        client: Client,
        env: Env,
        driver: Driver,
        node: NodeRegistration,
        recorder: Recorder,
        api: ApiAccess | None = None,
    ) -> None:
        self.client = client
        self.records = AgentRecords(env, recorder, client, node.name)
        self.tokens = AccountTokens(client, env, api)
        self._api = api
        self.env = env
        self.driver = driver
        self.node = node
        metrics = env.metrics
        self.starts = metrics.counter("kedge_agent_starts_total", "Processes started, by kind of start", ("kind",))
        self.retries = metrics.counter("kedge_agent_retries_total", "Pod syncs that failed and were repeated")
        self.refreshes = metrics.counter(
            "kedge_agent_refreshes_total", "Containers whose files were brought up to date"
        )
        self.resizes = metrics.counter("kedge_agent_resizes_total", "Resizes of processes, by outcome", ("outcome",))
        self.hooks = metrics.counter("kedge_agent_hooks_total", "Lifecycle hooks that failed", ("hook",))

    async def of_pod(self, uid: str) -> tuple[ContainerProcess, ...]:
        return tuple(each for each in await self.driver.processes() if each.identity.pod_uid == uid)

    async def surroundings(self, pod: PodView) -> Surroundings:
        """Read the objects that a pod refers to, and no others."""
        objects: dict[Key, Mapping[str, Any] | None] = {}
        for key in references(pod):
            found = await self.client.find(key)
            objects[key] = None if found is None else found.edit()
            if found is None and key.kind == CONFIG_MAP_KIND and key.name == ROOT_AUTHORITY and self._api is not None:
                objects[key] = {"data": {"ca.crt": self._api.authority_pem}}
        return Surroundings(
            node_ip=self.node.address,
            address=await self.driver.prepare(pod),
            allocatable=self.node.capacity,
            services=await self.driver.service_variables(pod),
            access=await self.tokens.access(pod),
            objects=objects,
        )

    async def claim_is_held(self, pod_uid: str, node_uid: str) -> bool | None:
        """Whether this incarnation's ledger has a proved claim of the pod. None if that is not known, or not yet so."""
        ledger = await self.ledger(node_uid)
        if ledger is None:
            return None
        claim = ledger.claims.get(pod_uid)
        if claim is not None and claim.state is ClaimState.UNADMITTED:
            return None
        return claim is not None and claim.state is ClaimState.BOUND

    async def committed(self) -> tuple[NodeView, Ledger]:
        """This incarnation of the node, and its ledger."""
        node_uid = self.node.uid
        node = await self.client.find(Key(NODE_KIND, "", self.node.name))
        ledger = await self.ledger(node_uid)
        if node is None or ledger is None or node.uid != node_uid:
            raise Unavailable("the node and its claims are not known yet: the agent tries again")
        return node.as_view(NodeView), ledger

    async def ledger(self, node_uid: str) -> Ledger | None:
        """The claims on this incarnation of the node. None if they are not known."""
        found = await self.client.find(Key(NODE_ALLOCATION_KIND, "", self.node.name))
        if found is None or not node_uid or found.as_view(NodeAllocationView).spec.node_uid != node_uid:
            return None  # the claims of an earlier incarnation may still be being released
        return ledger_of(found.as_view(NodeAllocationView))
