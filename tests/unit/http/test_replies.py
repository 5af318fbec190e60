"""Replies as Kubernetes' clients read them: the fields of `Status`, of discovery and of `/version`."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


def request(method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        "Connection: close",
        f"Content-Length: {len(data)}",
        f"Content-Type: {content_type}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + data


async def sent(port: int, *arguments: Any) -> tuple[int, str, Any]:
    """The code, the head and the decoded body of one reply."""
    head, _, body = (await exchange(port, request(*arguments), end=False)).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), json.loads(body)


async def create_config_map(port: int, name: str) -> None:
    await sent(port, "POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
    code, _, _ = await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": name}})
    assert code == 201


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
