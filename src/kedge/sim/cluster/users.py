"""Users: they apply, scale, roll out, roll back and delete through an API server, and retry.

`User` is a simulated one, whose client may lose replies too. Judges compare the cluster with the requests of users, so
every call returns only when the API has confirmed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, PatchType
from kedge.api.wellknown import DEPLOYMENT_REVISION, NODE_KIND, REPLICA_SET_KIND, TEMPLATE_HASH_LABEL
from kedge.client.contract import Client
from kedge.errors import AlreadyExists, Conflict, Lagged, NotFound, OutcomeUnknown, TooManyRequests, Unavailable
from kedge.keys import Key
from kedge.sim.cluster import Cluster

_T = TypeVar("_T")
AGAIN_S = 1.0
_AGAIN = (Unavailable, OutcomeUnknown, TooManyRequests, Conflict, Lagged)


class ApiUser:
    """One user with one client, of any cluster. `all_of` returns the committed objects of a kind and namespace."""

    def __init__(self, client: Client, all_of: Callable[[str, str], Sequence[Object]]) -> None:
        self._client = client
        self._all_of = all_of

    async def apply(self, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create the object or merge into it, as `kubectl apply` does."""
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        metadata = body["metadata"]
        key = Key(
            kind.key_kind, (namespace or metadata.get("namespace", "")) if kind.namespaced else "", metadata["name"]
        )

        async def once() -> Object:
            if await self._client.find(key) is None:
                try:
                    return (await self._client.create(kind, body, namespace=key.namespace)).object
                except AlreadyExists:
                    pass  # perhaps an earlier attempt whose reply was lost
            try:
                return (await self._client.patch(key, body)).object
            except NotFound as error:
                raise Conflict(f"{key} was deleted while it was applied") from error

        return await self._retry(once, f"applies {key}")

    async def patch(self, key: Key, body: Mapping[str, Any], *, subresource: str = "") -> Object:
        async def once() -> Object:
            return (await self._client.patch(key, body, subresource=subresource)).object

        return await self._retry(once, f"changes {key}")

    async def scale(self, key: Key, replicas: int) -> Object:
        return await self.patch(key, {"spec": {"replicas": replicas}})

    async def roll_out(self, key: Key, image: str) -> Object:
        """Change the image of every container of a workload's template."""

        async def once() -> Object:
            found = await self._client.get(key)
            template = found.edit()["spec"]["template"]
            for container in template["spec"]["containers"]:
                container["image"] = image
            return (await self._client.patch(key, {"spec": {"template": template}})).object

        return await self._retry(once, f"rolls {key} out to {image}")

    async def roll_back(self, key: Key) -> Object | None:
        """Restore the template of the previous revision, as `kubectl rollout undo` does. None if there is none."""

        chosen: list[dict[str, Any]] = []

        async def once() -> Object | None:
            # Chosen once: the first attempt may have succeeded, and changed which revision is the previous one.
            if not chosen:
                found = await self._client.get(key)
                by_age = sorted(
                    self._sets_of(found), key=lambda each: int(each.metadata.annotations.get(DEPLOYMENT_REVISION, "0"))
                )
                if len(by_age) < 2:
                    return None
                template = by_age[-2].edit()["spec"]["template"]
                template["metadata"].get("labels", {}).pop(TEMPLATE_HASH_LABEL, None)
                chosen.append(template)
            # Replaced, not merged: fields that only the newer template has must go.
            change = [{"op": "replace", "path": "/spec/template", "value": chosen[0]}]
            return (await self._client.patch(key, change, patch_type=PatchType.JSON)).object

        return await self._retry(once, f"rolls {key} back")

    def _sets_of(self, deployment: Object) -> list[Object]:
        return [
            each
            for each in self._all_of(REPLICA_SET_KIND, deployment.key.namespace)
            if any(ref.uid == deployment.uid for ref in each.metadata.owner_references)
        ]

    async def delete(self, key: Key, *, force: bool = False, propagation: str = "") -> None:
        async def once() -> None:
            try:
                await self._client.delete(key, DeleteOptions(grace_s=0 if force else None, propagation=propagation))
            except NotFound:
                return

        await self._retry(once, f"deletes {key}{' by force' if force else ''}")

    async def cordon(self, node: str, *, cordoned: bool = True) -> None:
        await self.patch(Key(NODE_KIND, "", node), {"spec": {"unschedulable": cordoned}})

    async def _retry(self, once: Callable[[], Awaitable[_T]], action: str) -> _T:
        """Repeat a request until it is answered. It may be carried out twice."""
        del action
        while True:
            try:
                return await once()
            except _AGAIN:
                await asyncio.sleep(AGAIN_S)


class User(ApiUser):
    """A simulated user. No fault crashes the user, but every request may be lost."""

    def __init__(self, cluster: Cluster, name: str = "alice", *, server: int = 0) -> None:
        self.cluster = cluster
        self.host = cluster.sim.host(name)
        client = cluster.client(self.host, server=server, limits=cluster.limits)
        super().__init__(client, lambda kind, namespace: cluster.all(kind, namespace=namespace))

    async def _retry(self, once: Callable[[], Awaitable[_T]], action: str) -> _T:
        self.cluster.sim.note("user", f"{self.host.name} {action}")
        return await self.host.run(super()._retry(once, action))
