"""A get that is answered without a task has the same bytes as one that is served in the plain way."""

from __future__ import annotations

import asyncio
import dataclasses

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.api_server import Gate, TrustingAuthenticator, exchange

from kedge.api.kinds import KINDS
from kedge.env import system_env
from kedge.limits import Limits
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.replies import GZIP_BYTES_MIN
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

ABOUT = {"kind": "Pod", "name": "a", "namespace": "default"}
POD = {"containers": [{"name": "c", "image": "i"}]}
OBJECTS = (
    ("Namespace", "", {"metadata": {"name": "default"}}),
    ("Node", "", {"metadata": {"name": "a", "labels": {"x": "y"}}}),
    ("ConfigMap", "default", {"metadata": {"name": "a"}, "data": {"x": 'é"\n'}}),
    ("ConfigMap", "default", {"metadata": {"name": "big"}, "data": {"x": "x" * GZIP_BYTES_MIN}}),
    ("Pod", "default", {"metadata": {"name": "a"}, "spec": POD}),
    ("Event", "default", {"metadata": {"name": "a"}, "involvedObject": ABOUT, "reason": "R"}),
)

paths = st.builds(
    lambda *parts: "/".join(["", *(part for part in parts if part)]),
    st.sampled_from(
        ["api/v1", "api/v1", "apis/apps/v1", "apis/events.k8s.io/v1", "apis/metrics.k8s.io/v1beta1", "api"]
    ),
    st.sampled_from(["", "namespaces/default", "namespaces/default", "namespaces/other"]),
    st.sampled_from(["configmaps", "configmaps", "pods", "nodes", "namespaces", "events", "nothing"]),
    st.sampled_from(["a", "a", "big", "missing", "default", "%61", "%ff", ""]),
    st.sampled_from(["", "", "", "status", "log", "nothing"]),
)
queries = st.lists(
    st.sampled_from([
        "pretty=true", "pretty=1", "resourceVersion=", "resourceVersion=0", "resourceVersion=3", "resourceVersion=x",
        "resourceVersion=9999", "includeObject=Object", "includeObject=None", "watch=false", "%ff", "unknown=1",
    ]),
    max_size=3,
).map("&".join)  # fmt: skip
headers = st.lists(
    st.sampled_from([
        "Accept: application/json", "Accept: */*", "Accept: text/html", "Accept: application/yaml, application/json",
        "Accept: application/json;as=Table;v=v1;g=meta.k8s.io, application/json",
        "Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "Accept-Encoding: gzip",
        "Accept-Encoding: gzip;q=0", "Kedge-Origins: 1", "Kedge-Operation: o-1", "Impersonate-User: someone",
        "Impersonate-Group: system:masters",
    ]),
    unique_by=lambda header: header.partition(":")[0],
    max_size=4,
)  # fmt: skip


class Counted:
    """The handler itself, and how many requests it answered without a task."""

    def __init__(self, server: ApiServer) -> None:
        self._handler = server.handler
        self.answered = 0

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        answered = self._handler.answer_nowait(request, exchange)
        self.answered += answered
        return answered

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        await self._handler(request, exchange)


def test_a_get_without_a_task_has_the_bytes_of_the_plain_one() -> None:
    with asyncio.Runner() as runner:
        env = system_env(limits=dataclasses.replace(Limits(), watch_future_wait_s=0.001))

        async def start() -> tuple[ApiServer, int, ApiServer, int]:
            service = Service(MemoryStore(env), env)
            for kind, namespace, body in OBJECTS:
                await service.create(KINDS.of_key_kind(kind), body, namespace=namespace)
            fast, plain = (ApiServer(service, env, authenticator=TrustingAuthenticator()) for _ in range(2))
            plain.connections.handler = Gate(plain.handler)  # it has no answer without a task
            return fast, await fast.start("127.0.0.1", 0, None), plain, await plain.start("127.0.0.1", 0, None)

        fast, fast_port, plain, plain_port = runner.run(start())
        fast.connections.handler = counted = Counted(fast)

        @settings(max_examples=400, deadline=None)
        @given(paths, queries, headers)
        @example("/api/v1/namespaces/default/configmaps/missing", "", ["Accept: text/html"])
        @example("/api/v1/namespaces/default/configmaps/a", "%ff", ["Impersonate-User: someone"])
        @example("/api/v1/namespaces/default/configmaps/big", "", ["Accept-Encoding: gzip"])
        @example("/api/v1/namespaces/default/configmaps/a", "", [])
        @example("/api/v1/configmaps/%ff", "", ["Impersonate-Group: system:masters"])
        @example("/readyz/ping", "verbose", ["Impersonate-Group: system:masters"])
        def check(path: str, query: str, headers: list[str]) -> None:
            target = f"{path}?{query}" if query else path
            head = "\r\n".join([f"GET {target} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]).encode()
            wanted = runner.run(exchange(plain_port, head, end=False))
            assert runner.run(exchange(fast_port, head, end=False)) == wanted

        try:
            check()
            assert counted.answered > 20
        finally:
            runner.run(fast.stop())
            runner.run(plain.stop())
