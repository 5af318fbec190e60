"""Requests to a local API server as plain HTTP, for tests of what clients see on the wire."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.api_server import exchange

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


def request(method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
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
