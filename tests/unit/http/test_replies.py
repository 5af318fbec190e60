"""Replies as Kubernetes' clients read them: the fields of `Status`, of discovery and of `/version`."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from tests.kit.api_server import TrustingAuthenticator, exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, STRATEGIC, create_config_map, request, sent

from kedge.env import system_env
from kedge.limits import Limits
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


@on_loop
async def test_version_has_every_field_that_the_schema_requires() -> None:
    async with local_api() as (_, port):
        _, _, version = await sent(port, "GET", "/version")
    required = ("major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler")
    assert all(isinstance(version.get(name), str) for name in (*required, "platform"))


@on_loop
async def test_details_of_a_status_have_the_plural_except_in_an_invalid_object() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        _, _, missing = await sent(port, "GET", f"{CONFIG_MAPS}/b")
        _, _, exists = await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": "a"}})
        _, _, invalid = await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": "A A"}})
    assert missing["details"]["kind"] == exists["details"]["kind"] == "configmaps"
    assert invalid["details"]["kind"] == "ConfigMap"


@on_loop
async def test_an_unknown_field_in_a_merge_patch_is_a_warning_or_an_error() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        patch = {"dat": {"x": "1"}}
        code, head, _ = await sent(port, "PATCH", f"{CONFIG_MAPS}/a", patch, MERGE)
        assert code == 200
        assert r'Warning: 299 - "unknown field \"dat\""' in head
        strict = f"{CONFIG_MAPS}/a?fieldValidation=Strict"
        for content_type in (MERGE, STRATEGIC):
            code, _, status = await sent(port, "PATCH", strict, patch, content_type)
            assert (code, status["message"]) == (400, 'strict decoding error: unknown field "dat"')
        removes: dict[str, Any] = {"dat": None, "$setElementOrder/finalizers": []}
        code, _, _ = await sent(port, "PATCH", strict, removes, STRATEGIC)
        assert code == 200


@on_loop
async def test_deleting_a_pod_returns_the_pod_and_deleting_a_config_map_a_status() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        await sent(port, "POST", "/api/v1/namespaces/default/pods", pod)
        _, _, deleted_pod = await sent(port, "DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0")
        _, _, deleted_map = await sent(port, "DELETE", f"{CONFIG_MAPS}/a")
    assert (deleted_pod["kind"], deleted_pod["metadata"]["name"]) == ("Pod", "p")
    assert (deleted_map["kind"], deleted_map["details"]["kind"]) == ("Status", "configmaps")


@on_loop
async def test_a_watch_from_a_compacted_revision_is_a_stream_with_one_error() -> None:
    env = system_env()
    store = MemoryStore(env)
    server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    for name in ("a", "b", "default"):
        _, _, made = await sent(port, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    await store.compact(int(made["metadata"]["resourceVersion"]))
    reply = await exchange(port, request("GET", "/api/v1/namespaces?watch=1&resourceVersion=1"), end=False)
    await server.stop()
    await store.close()
    assert reply.startswith(b"HTTP/1.1 200")
    assert b'{"type":"ERROR","object":{"kind":"Status"' in reply
    assert b'"code":410' in reply
    assert reply.endswith(b"0\r\n\r\n")


@on_loop
async def test_a_future_revision_is_the_timeout_that_clients_recognise() -> None:
    limits = dataclasses.replace(Limits(), watch_future_wait_s=0.01)
    async with local_api(limits=limits) as (_, port):
        code, head, status = await sent(port, "GET", "/api/v1/namespaces?resourceVersion=999")
    assert (code, status["reason"]) == (504, "Timeout")
    assert "ResourceVersionTooLarge" in [cause["reason"] for cause in status["details"]["causes"]]
    assert "Retry-After: 1" in head


@on_loop
async def test_the_stream_of_a_watcher_that_lags_ends_without_an_error() -> None:
    limits = dataclasses.replace(Limits(), watch_backlog_max=4)
    async with local_api(limits=limits) as (_, port):
        await create_config_map(port, "first")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
        writer.write(request("GET", f"{CONFIG_MAPS}?watch=1"))
        await reader.readuntil(b"ADDED")
        for number in range(30):
            body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 500_000}}
            await sent(port, "POST", CONFIG_MAPS, body)
        rest = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert b'"type":"ERROR"' not in rest
    assert rest.count(b'"type":"ADDED"') < 30
    assert rest.endswith(b"0\r\n\r\n")


@on_loop
async def test_an_unknown_field_is_reported_once() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        pod = {"metadata": {"name": "p"}, "spec": {"contianers": [], "containers": [{"name": "c", "image": "x"}]}}
        _, head, _ = await sent(port, "POST", "/api/v1/namespaces/default/pods", pod)
    assert head.count("contianers") == 1


@on_loop
async def test_openapi_v2_is_served_as_protobuf_on_request() -> None:
    accept = "Accept: application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    head = f"GET /openapi/v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{accept}\r\n\r\n"
    async with local_api() as (_, port):
        reply = await exchange(port, head.encode(), end=False)
    head, _, body = reply.decode("latin-1").partition("\r\n\r\n")
    assert "Content-Type: application/com.github.proto-openapi" in head
    assert body.startswith("\x0a\x032.0\x12")
    assert "io.k8s.api.core.v1.ConfigMap" in body


@on_loop
async def test_every_failure_has_details() -> None:
    async with local_api() as (_, port):
        _, _, status = await sent(port, "GET", "/api/v1/namespaces/default/pods/p/ephemeralcontainers")
    assert (status["reason"], status["details"]) == ("NotFound", {})


@on_loop
async def test_a_request_to_switch_protocols_is_answered_as_plain_http() -> None:
    head = b"GET /api/v1/namespaces/default/pods/p/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    async with local_api() as (_, port):
        reply = await exchange(port, head + b"Upgrade: websocket\r\n\r\n", b"\x81\x00 more", end=False)
    assert reply.startswith(b"HTTP/1.1 404")
    assert b'"reason":"NotFound"' in reply


@on_loop
async def test_an_autoscaler_of_the_older_version_is_stored_in_the_newer() -> None:
    path = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
    target = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}
    body = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "d"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
    }
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, made = await sent(port, "POST", path.format("v1"), body)
        _, _, stored = await sent(port, "GET", path.format("v2") + "/d")
        refused, _, _ = await sent(port, "GET", path.format("v1") + "/d")
    assert (code, made["apiVersion"], refused) == (201, "autoscaling/v1", 405)
    assert made["spec"]["targetCPUUtilizationPercentage"] == 50
    (metric,) = stored["spec"]["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}


@on_loop
async def test_requests_are_counted_by_method_and_code() -> None:
    async with local_api() as (server, port):
        await create_config_map(port, "a")
        for name in ("a", "a", "b"):
            await sent(port, "GET", f"{CONFIG_MAPS}/{name}")
        counted = {values: child.value for values, child in server.connections.requests.children.items()}
    assert counted == {("POST", "201"): 2, ("GET", "200"): 2, ("GET", "404"): 1}
