"""Users and operators that change every input of a scheduler, through faulty links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.kit.scheduler_fleet import SchedulerFleet, confirm
from tests.kit.scheduler_invariants import GANG, HOST, NODES, OTHER, PODS, QUOTA, ZONE, ZONES
from tests.objects import NODE, POD, ZONE_QUOTA, node, pod, zone_quota

from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.client.contract import Client
from kedge.errors import OperatingError
from kedge.keys import Key


class User:
    """Does one random step after another through a faulty link, and ignores errors."""

    def __init__(self, fleet: SchedulerFleet, client: Client) -> None:
        self._town = fleet
        self._sim = fleet.sim
        self._client = client
        self._steps: tuple[tuple[str, Callable[[], Any]], ...] = (
            *(("create", self._create),) * 2,
            *(("burst", self._burst),) * 3,
            ("replace", self._replace),
            ("replace", self._replace),
            ("replace", self._replace),
            ("delete", self._delete),
            ("gang", self._gang),
            ("end", self._end),
            ("quota", self._quota),
            ("resize", self._resize),
            ("node", self._node),
            ("cordon", self._cordon),
            ("relabel", self._relabel),
            ("move", self._move),
            ("depose", self._depose),
        )

    async def step(self, *among: str) -> None:
        """One random step; of the named ones, if any."""
        steps = tuple(each for each in self._steps if not among or each[0] in among)
        name, step = self._sim.choose("step", steps)
        try:
            await step()
            self._sim.sometimes(name)
        except OperatingError:
            return

    def body(self, name: str, rules: tuple[str, ...] = ("", "", "apart", "near", "spread")) -> dict[str, Any]:
        body = pod(name, cpu=self._sim.choose("cpu", ("400m", "700m")))
        if name in GANG:
            body["metadata"]["labels"]["kedge.dev/gang"] = "duo"
            body["metadata"]["annotations"] = {"kedge.dev/gang-size": "2"}
            return body
        body["spec"]["schedulerName"] = self._sim.choose("scheduler", ("default-scheduler", OTHER))
        if self._sim.choose("urgent", (False, False, False, True)):
            body["spec"]["priorityClassName"] = "urgent"
        rule = self._sim.choose("rule", rules)
        if rule:
            body["metadata"]["labels"]["app"] = rule
        if rule in ("apart", "near"):
            term = {"labelSelector": {"matchLabels": {"app": rule}}, "topologyKey": HOST if rule == "apart" else ZONE}
            side = "podAntiAffinity" if rule == "apart" else "podAffinity"
            body["spec"]["affinity"] = {side: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif rule == "spread":
            body["spec"]["topologySpreadConstraints"] = [
                {
                    "maxSkew": self._sim.choose("skew", (1, 2)),
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "spread"}},
                }
            ]
        return body

    async def _create(self) -> None:
        await self._client.create(POD, self.body(self._sim.choose("pod", PODS)))

    async def _burst(self) -> None:
        """Several pods at once, for both schedulers: they race for the same nodes."""
        names = PODS[self._sim.choose_int("from pod", 0, 4) :][:4]
        await asyncio.gather(*(self._client.create(POD, self.body(name)) for name in names), return_exceptions=True)

    async def _replace(self) -> None:
        """Replace a pod by another of the same name."""
        found = await self._client.get(Key("Pod", "default", self._sim.choose("pod", PODS)))
        await self._remove(found)
        await self._client.create(POD, self.body(found.key.name))
        self._sim.sometimes("a pod was replaced under its name")

    async def ambush(self) -> None:
        """Wait for a bind in flight, and act before it arrives."""
        life = await self._town.wait_bind()
        if life is None:
            return
        what = self._sim.choose("ambush", ("replace", "replace", "depose", "stop"))
        if what == "stop":
            life.wire.stop_the_host()
        elif what == "depose":
            await self._take_lease(life.scheduler.name)
        else:
            key = self._sim.choose("whom", tuple(life.wire.binds_out))
            await self._town.cluster.authority.delete(key, DeleteOptions(grace_s=0))
            await self._town.cluster.authority.create(POD, self.body(key.name))
            self._sim.sometimes("a pod was replaced under its name")

    async def _delete(self) -> None:
        await self._remove(await self._client.get(Key("Pod", "default", self._sim.choose("pod", (*PODS, *GANG)))))

    async def _remove(self, found: Object) -> None:
        """Force-delete a pod; its agent may confirm the end or not."""
        await self._client.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
        if self._sim.choose("confirmed", (True, True, False)):
            await confirm(self._client, found.view.spec.node_name, found.uid)

    async def _gang(self) -> None:
        for name in GANG:
            await self._client.create(POD, self.body(name))

    async def _end(self) -> None:
        key = Key("Pod", "default", self._sim.choose("pod", PODS))
        await self._client.patch(key, {"status": {"phase": "Succeeded"}}, subresource="status")

    async def _quota(self) -> None:
        if await self._client.find(QUOTA) is None:
            await self._client.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "800m"}, zone_b={"cpu": "2"}))
        elif self._sim.choose("what becomes of the quota", ("change", "delete")) == "delete":
            await self._client.delete(QUOTA)
        else:
            hard = {"cpu": self._sim.choose("zone quota", ("1500m", "800m", "400m"))}
            await self._client.patch(QUOTA, {"spec": {"zones": {"zone-a": {"hard": hard}}}})

    async def _resize(self) -> None:
        key = Key("Node", "", self._sim.choose("node", NODES))
        cpu = self._sim.choose("cpu of node", ("1500m", "1", "500m"))
        await self._client.patch(key, {"status": {"allocatable": {"cpu": cpu}}}, subresource="status")

    async def _node(self) -> None:
        name = self._sim.choose("node", NODES)
        found = await self._client.find(Key("Node", "", name))
        if found is not None:
            await self._client.delete(found.key, DeleteOptions(uid=found.uid))
            if not self._sim.choose("it comes back at once", (True, False)):
                return
            self._sim.sometimes("a node was replaced under its name")
        await self._client.create(NODE, node(name, zone=ZONES[name], cpu="1500m"))

    async def _relabel(self) -> None:
        """Relabel a pod: other rules match it from now on."""
        key = Key("Pod", "default", self._sim.choose("pod", PODS))
        await self._client.patch(key, {"metadata": {"labels": {"app": self._sim.choose("app", ("apart", "web"))}}})

    async def _move(self) -> None:
        """Move a node, and the pods on it, to another zone."""
        key = Key("Node", "", self._sim.choose("node", NODES))
        zone = self._sim.choose("zone", ("zone-a", "zone-b"))
        await self._client.patch(key, {"metadata": {"labels": {ZONE: zone}}})

    async def _depose(self) -> None:
        await self._take_lease(self._sim.choose("whom", ("default-scheduler", OTHER)))

    async def _take_lease(self, name: str) -> None:
        """Clear the lease; its holder does not know it yet."""
        key = Key("Lease.coordination.k8s.io", "kube-system", name)
        await self._town.cluster.authority.patch(key, {"spec": {"holderIdentity": ""}})

    async def _cordon(self) -> None:
        key = Key("Node", "", self._sim.choose("node", NODES))
        found = await self._client.get(key)
        await self._client.patch(key, {"spec": {"unschedulable": not found.view.spec.unschedulable}})
