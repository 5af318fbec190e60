"""Manifests, clocks and a service on a store, for many tests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ParamSpec

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions, Written
from kedge.env import Env, TaskSpawner, uid_from
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service import AdmissionChain, Service
from kedge.server.service.account_tokens import TokenKeys
from kedge.server.service.credentials.signing_rules import CertificateSigner
from kedge.store import Store
from kedge.store.memory import MemoryStore

P = ParamSpec("P")

POD = KINDS.of_key_kind("Pod")
NODE = KINDS.of_key_kind("Node")
NAMESPACE = KINDS.of_key_kind("Namespace")
CONFIG_MAP = KINDS.of_key_kind("ConfigMap")
DEPLOYMENT = KINDS.of_key_kind("Deployment.apps")
RESOURCE_QUOTA = KINDS.of_key_kind("ResourceQuota")
ZONE_QUOTA = KINDS.of_key_kind("ZoneQuota.kedge.dev")
RESERVATION = KINDS.of_key_kind("Reservation.kedge.dev")
ALLOCATION = KINDS.of_key_kind("NodeAllocation.kedge.dev")
BUDGET = KINDS.of_key_kind("PodDisruptionBudget.policy")
LEASE = KINDS.of_key_kind("Lease.coordination.k8s.io")


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


# -- manifests -------------------------------------------------------------------------------------


def pod(name: str = "web-0", *, cpu: str = "100m", memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [container], **spec},
    }


def node(
    name: str = "node-a", *, zone: str = "zone-a", cpu: str = "4", pods: str = "110", **spec: Any
) -> dict[str, Any]:
    offered = {"cpu": cpu, "memory": "32Gi", "pods": pods}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"capacity": offered, "allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def config_map(name: str = "settings", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


def deployment(name: str = "web", *, replicas: int = 3) -> dict[str, Any]:
    template = pod()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }


def resource_quota(name: str = "limits", **hard: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hard": {key.replace("__", "."): value for key, value in hard.items()}},
    }


def zone_quota(name: str = "zones", **zones: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "kedge.dev/v1",
        "kind": "ZoneQuota",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"zones": {zone.replace("_", "-"): {"hard": dict(hard)} for zone, hard in zones.items()}},
    }


def reservation(pod_object: Object, node_name: str, *, generation: int = 1, gang: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "kedge.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": pod_object.uid, "namespace": pod_object.key.namespace},
        "spec": {
            "pod": {"name": pod_object.key.name, "uid": pod_object.uid},
            "nodeName": node_name,
            "generation": generation,
            "deadline": "2030-01-01T00:10:00Z",
            **({"gang": gang} if gang else {}),
        },
    }


def gang_record(name: str = "gang", *, size: int = 2) -> dict[str, Any]:
    return {
        "apiVersion": "kedge.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"gangSize": size, "deadline": "2030-01-01T00:10:00Z"},
    }


def pod_key(name: str = "web-0", namespace: str = "default") -> Key:
    return Key("Pod", namespace, name)


# -- worlds ----------------------------------------------------------------------------------------


class Clock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def make_env(*, seed: int = 1, clock: Clock | None = None, limits: Limits | None = None) -> Env:
    source, ticking = Random(seed), clock or Clock()
    return Env(
        now=ticking.now,
        monotonic=ticking.monotonic,
        random=source,
        new_uid=lambda: uid_from(source),
        spawn=TaskSpawner(),
        secret_bytes=source.randbytes,
        limits=limits or Limits(),
    )


class World:
    """A service on a store, with the namespace `default`."""

    def __init__(self, store: Store, env: Env, clock: Clock, **means: Any) -> None:
        self.store = store
        self.env = env
        self.clock = clock
        self.service = Service(store, env, **means)

    async def create(self, body: Mapping[str, Any], **options: Any) -> Object:
        return (await self.create_written(body, **options)).object

    async def create_written(self, body: Mapping[str, Any], **options: Any) -> Written:
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        return await self.service.create(kind, body, options=WriteOptions(**options))

    async def get(self, key: Key) -> Object:
        return await self.service.get(key)

    async def ledger(self, node_name: str) -> Any:
        return (await self.get(Key("NodeAllocation.kedge.dev", "", node_name))).view.status

    async def record_end(self, key: Key, phase: str = "Succeeded") -> Object:
        return (await self.service.patch(key, {"status": {"phase": phase}}, subresource="status")).object


async def make_world(
    *,
    limits: Limits | None = None,
    admission: AdmissionChain | None = None,
    token_keys: TokenKeys | None = None,
    certificate_signer: Callable[[Callable[[], datetime]], CertificateSigner] | None = None,
    store: Store | None = None,
) -> World:
    clock = Clock()
    env = make_env(clock=clock, limits=limits)
    signer = None if certificate_signer is None else certificate_signer(env.now)
    world = World(
        store or MemoryStore(env), env, clock, admission=admission, token_keys=token_keys, certificate_signer=signer
    )
    await world.service.create(NAMESPACE, {"metadata": {"name": "default"}})
    return world
