"""Tokens of ServiceAccounts in pods: projected, added by themselves, and renewed before they end."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.kit.agent import ONE_ATTEMPT, AgentHarness, until, with_agent

from kedge.agent.core import Agent, ApiAccess, ContainerSetup
from kedge.agent.core.driver import CannotStart, FileVolume
from kedge.agent.core.worker_context import WorkerContext
from kedge.api.kinds import KINDS
from kedge.api.views import PodView
from kedge.api.wellknown import ACCOUNT_FOLDER
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.errors import Unauthorized
from kedge.keys import Key
from kedge.server.http.token_keys import SigningKeys
from kedge.server.service import Service

ACCOUNT = KINDS.of_key_kind("ServiceAccount")
API = ApiAccess("127.0.0.1", 6443, "the authority")
KEYS = SigningKeys([ec.generate_private_key(ec.SECP256R1())])
RUN = {"name": "main", "image": "x", "command": ["run"]}


def signing(harness: AgentHarness) -> Service:
    """A server of the harness's cluster that signs tokens."""
    cluster = harness.cluster
    return Service(cluster.store, cluster.store_host.env(limits=cluster.limits), token_keys=KEYS)


def with_api(harness: AgentHarness, api: ApiAccess | None = API) -> AgentHarness:
    """Let the agent request tokens of a server that signs them."""
    client = Client(DirectTransport(signing(harness)), harness.env, component="tokens")
    harness.context = WorkerContext(client, harness.env, harness.driver, harness.node, harness.recorder, api)
    return harness


def volumes(setup: ContainerSetup) -> dict[str, dict[str, str]]:
    """The files of each mount point."""
    return {
        mount.path: {file.path: file.data.decode() for file in mount.volume.files}
        for mount in setup.mounts
        if isinstance(mount.volume, FileVolume)
    }


def end_of(token: str) -> datetime:
    claims = KEYS.verify(token)
    assert claims is not None
    return datetime.fromtimestamp(claims["exp"], UTC)


async def started(harness: AgentHarness, **spec: Any) -> ContainerSetup:
    await harness.in_contact()
    harness.worker(await harness.bound_pod(**{"containers": [RUN], **spec}))
    await until(lambda: bool(harness.driver.started))
    return next(iter(harness.driver.setups.values()))


@with_agent()
async def test_a_process_finds_token_authority_and_namespace_where_clients_look(harness: AgentHarness) -> None:
    setup = await started(with_api(harness))
    files = volumes(setup)[ACCOUNT_FOLDER]
    found = await signing(harness).identify(files.pop("token"))
    assert found.user == "system:serviceaccount:default:default"
    assert found.extra["authentication.kubernetes.io/pod-name"] == "web-0"
    assert files == {"ca.crt": "the authority", "namespace": "default"}
    assert all(mount.read_only for mount in setup.mounts)
    assert setup.env["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"
    assert setup.env["KUBERNETES_SERVICE_PORT"] == "6443"


@with_agent()
async def test_a_pod_that_declines_gets_no_token(harness: AgentHarness) -> None:
    setup = await started(with_api(harness), automountServiceAccountToken=False)
    assert volumes(setup) == {}
    assert "KUBERNETES_SERVICE_HOST" in setup.env


@with_agent()
async def test_an_account_that_declines_gives_no_token_unless_the_pod_wants_one(harness: AgentHarness) -> None:
    service = signing(with_api(harness))
    account = Key("ServiceAccount", "default", "default")
    await service.patch(account, {"automountServiceAccountToken": False})
    await harness.in_contact()
    made = await harness.bound_pod(containers=[RUN])
    around = await harness.context.surroundings(made.as_view(PodView))
    assert not around.access.automatic
    assert not around.access.tokens
    wants = await harness.cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "wants", "namespace": "default"},
            "spec": {"containers": [RUN], "automountServiceAccountToken": True},
        }
    )
    assert (await harness.context.surroundings(wants.as_view(PodView))).access.automatic


@with_agent()
async def test_a_container_that_mounts_its_own_volume_there_keeps_it(harness: AgentHarness) -> None:
    own = {"name": "own", "emptyDir": {}}
    container = {**RUN, "volumeMounts": [{"name": "own", "mountPath": f"{ACCOUNT_FOLDER}/"}]}
    setup = await started(with_api(harness), containers=[container], volumes=[own])
    assert [mount.volume.name for mount in setup.mounts] == ["own"]


@with_agent()
async def test_an_exported_manifest_with_its_projected_volume_works(harness: AgentHarness) -> None:
    """As Kubernetes writes it into each pod: a token, the authority's ConfigMap, the namespace."""
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [{"fieldRef": {"fieldPath": "metadata.namespace"}, "path": "namespace"}]}},
    ]
    container = {**RUN, "volumeMounts": [{"name": "kube-api-access-x7k2p", "mountPath": ACCOUNT_FOLDER}]}
    projected = {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": sources}}
    setup = await started(with_api(harness), containers=[container], volumes=[projected], serviceAccountName="default")
    files = volumes(setup)[ACCOUNT_FOLDER]
    assert (files["ca.crt"], files["namespace"]) == ("the authority", "default")
    await signing(harness).identify(files["token"])


@with_agent()
async def test_a_projected_token_is_for_its_audience(harness: AgentHarness) -> None:
    token = {"path": "vault-token", "audience": "vault", "expirationSeconds": 900}
    container = {**RUN, "volumeMounts": [{"name": "t", "mountPath": "/t"}]}
    projected = {"name": "t", "projected": {"sources": [{"serviceAccountToken": token}]}}
    setup = await started(with_api(harness, None), containers=[container], volumes=[projected])
    (text,) = volumes(setup)["/t"].values()
    assert (await signing(harness).identify(text, ("vault",))).audiences == ("vault",)
    with pytest.raises(Unauthorized):
        await signing(harness).identify(text)
    assert "KUBERNETES_SERVICE_HOST" not in setup.env


@with_agent()
async def test_a_pod_of_a_missing_account_waits_and_reports_the_reason(harness: AgentHarness) -> None:
    await with_api(harness).in_contact()
    made = await harness.bound_pod(containers=[RUN], serviceAccountName="builder")
    with pytest.raises(CannotStart, match="serviceaccount default/builder is not found: create it"):
        await harness.context.surroundings(made.as_view(PodView))
    harness.worker(made)
    await until(lambda: harness.status().container_statuses)
    waiting = harness.status().container_statuses[0].state.waiting
    assert waiting.reason == "CreateContainerConfigError"
    assert not harness.driver.started
    await harness.cluster.authority.create(ACCOUNT, {"metadata": {"name": "builder"}}, namespace="default")
    await until(lambda: bool(harness.driver.started))


@with_agent(limits=replace(ONE_ATTEMPT, agent_refresh_s=30.0))
async def test_a_token_is_renewed_before_it_ends_and_not_more_often(harness: AgentHarness) -> None:
    setup = await started(with_api(harness))
    first = volumes(setup)[ACCOUNT_FOLDER]["token"]
    await asyncio.sleep(0.75 * 3600)
    assert {volumes(each)[ACCOUNT_FOLDER]["token"] for each in harness.driver.updated} <= {first}
    assert len(harness.driver.updated) <= 2, "a token alone is no reason to read everything each minute"
    await until(lambda: volumes(harness.driver.updated[-1])[ACCOUNT_FOLDER]["token"] != first, within_s=600)
    assert harness.env.now() < end_of(first)
    second = volumes(harness.driver.updated[-1])[ACCOUNT_FOLDER]["token"]
    await asyncio.sleep(1200)
    await signing(harness).identify(second)


@with_agent()
async def test_tokens_of_a_pod_that_is_gone_are_forgotten(harness: AgentHarness) -> None:
    client = Client(DirectTransport(signing(harness)), harness.env, component="tokens")
    agent = harness.start(Agent(client, harness.env, harness.driver, harness.machine, harness.recorder, API).run())
    held = functools.partial(harness.env.metrics.registry.get_sample_value, "kedge_agent_tokens")
    await until(lambda: harness.cluster.find(Key("Node", "", "node-a")) is not None)
    made = await harness.bound_pod(containers=[RUN])
    await until(lambda: held() == 1)
    await harness.cluster.authority.delete(made.key)
    await until(lambda: held() == 0)
    agent.cancel()
