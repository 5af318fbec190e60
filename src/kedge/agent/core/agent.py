"""The agent of one node: keeps it registered, finds the pods bound to it, and gives each a worker.

It joins `node`, `pods` and a driver to the API, and decides nothing itself. Without contact to the API
it keeps its processes running.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kedge.agent.core.account_tokens import ApiAccess
from kedge.agent.core.driver import Driver
from kedge.agent.core.node import Machine, NodeRegistration
from kedge.agent.core.pods import PodWorker
from kedge.agent.core.usage import UsageMeter
from kedge.agent.core.worker_context import WorkerContext
from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, PodView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, NODE_KIND, POD_KIND
from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.placement.resources import pod_requests
from kedge.runtime.cache import Cache, CacheChange, CacheSet


class Agent:
    """Runs the pods of one node. `run` it once; it works until it is cancelled, and its processes keep running."""

    def __init__(
        self,
        client: Client,
        env: Env,
        driver: Driver,
        machine: Machine,
        recorder: Recorder,
        api: ApiAccess | None = None,
    ) -> None:
        """`recorder` gets a record of each decision about a pod.

        `api`: how processes of pods reach the API. Without it they get no token unless they declare one.
        """
        self._client = client
        self._env = env
        self._driver = driver
        self._machine = machine
        self.recorder = recorder
        self._caches = CacheSet(client, env, probed=client.kinds.of_key_kind(NODE_KIND))
        self.node = NodeRegistration(
            client,
            env,
            machine,
            self._caches,
            UsageMeter(env, driver),
            clear=self._clear,
            on_contact=self._on_contact,
        )
        self._context = WorkerContext(client, env, driver, self.node, recorder, api)
        self._workers: dict[str, PodWorker] = {}
        gauge = env.metrics.gauge("kedge_agent_pods", "Pods with a worker")
        gauge.set_function(lambda: len(self._workers))
        self._audits = env.metrics.counter(
            "kedge_agent_audits_total", "Claims without a pod or process whose end was confirmed"
        )

    async def run(self) -> None:
        try:
            self._driver.listen(self._on_process)
            await self.node.register()
            await self._clear(self.node.uid)  # processes of a former incarnation, if another agent registered this one
            self._pods().subscribe(self._on_pod, name="agent")
            async with asyncio.TaskGroup() as group:
                group.create_task(self.node.run(), name="heartbeats")
                group.create_task(self._adopt(), name="adopt")
                group.create_task(self._audit(), name="audit")
        finally:
            for worker in self._workers.values():
                worker.stop()
            await self._context.records.events.stop()
            await self._caches.stop()

    # -- workers ---------------------------------------------------------------------------------

    def _on_pod(self, change: CacheChange) -> None:
        before, now = change.old, change.new
        if before is not None and _frees_room(before, now):
            for worker in self._workers.values():
                if worker.awaits_room:
                    worker.wake()
        if before is not None and (now is None or now.uid != before.uid):
            self._worker(before.uid, before.key).update(None)
        if now is not None:
            self._worker(now.uid, now.key).update(now)

    def _on_process(self, pod_uid: str) -> None:
        worker = self._workers.get(pod_uid)
        if worker is not None:
            worker.wake()

    async def _adopt(self) -> None:
        """Re-adopt the processes of an earlier run of this agent: a pod that is gone has no event to make a worker."""
        while True:
            with suppress(OperatingError):
                await self._pods().wait_synced(within_s=self._env.limits.agent_audit_s)
                break
        for process in await self._driver.processes():
            self._worker(process.identity.pod_uid, Key(POD_KIND, process.namespace, process.pod)).wake()
        for kept in await self._driver.kept_pods():
            self._worker(kept.uid, Key(POD_KIND, kept.namespace, kept.name)).wake()

    def _worker(self, uid: str, key: Key) -> PodWorker:
        found = self._workers.get(uid)
        if found is None:
            found = self._workers[uid] = PodWorker(self._context, uid, key, self._on_done)
        return found

    def _on_done(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._context.tokens.forget(uid)

    # -- unseen pods -----------------------------------------------------------------------------

    async def _audit(self) -> None:
        """Look periodically for claims on this node of pods that are gone and that no process was started for.

        Such a pod was bound and force-deleted before this agent saw it: only the agent can confirm that it never ran.
        """
        while True:
            await asyncio.sleep(jittered(self._env.limits.agent_audit_s, self._env.random, (0.9, 1.1)))
            with suppress(OperatingError):
                self._confirm_unseen()
                found = await self._client.find(Key(NODE_ALLOCATION_KIND, "", self._machine.name))
                if found is None:
                    continue
                ledger = found.as_view(NodeAllocationView)
                if ledger.spec.node_uid != self.node.uid:
                    continue
                for uid, entry in ledger.status.entries.items():
                    if uid not in self._workers and entry.state == "Bound":
                        self._audits.inc()
                        self._worker(uid, Key(POD_KIND, entry.namespace, entry.name)).wake()

    def _confirm_unseen(self) -> None:
        """Have workers read pods that are not in the cache from the API server.

        A worker may know its pod only from the ledger, a process or its own read. If the pod was created and deleted
        while the cache had no stream, no event will ever show that it is gone.
        """
        cached = {each.uid for each in self._pods().list().value}
        for uid, worker in self._workers.items():
            if uid not in cached:
                worker.update(None)

    def _pods(self) -> Cache:
        return self._caches.cache(
            self._client.kinds.of_key_kind(POD_KIND), field_selector=f"spec.nodeName={self._machine.name}"
        )

    async def _clear(self, node_uid: str = "") -> None:
        """Stop everything that runs for any incarnation but `node_uid`, and wait until nothing of it does."""
        while True:
            every = await self._driver.processes()
            running = [each for each in every if each.running and each.identity.node_uid != node_uid]
            if not running:
                return
            for process in running:
                await self._driver.stop(process.identity, grace_s=0)
            await asyncio.sleep(self._env.limits.agent_retry_s)

    # -- contact -----------------------------------------------------------------------------------

    def _on_contact(self) -> None:
        for worker in self._workers.values():
            if worker.at_most_one:
                self._env.spawn(worker.keep(), name=f"keep {worker.key.name}")
            if worker.awaits_contact:
                worker.wake()


def _frees_room(before: Object, now: Object | None) -> bool:
    """Whether a pod of this node is gone, has ended or counts with less than before."""
    if now is None or now.uid != before.uid:
        return True
    old, new = before.as_view(PodView), now.as_view(PodView)
    if new.finished != old.finished:
        return True
    less = pod_requests(new)
    return any(amount > less.get(resource, 0) for resource, amount in pod_requests(old).items())
