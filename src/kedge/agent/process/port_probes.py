"""Probes of a port of a process: HTTP, TCP and gRPC. Commands are run by the keeper, see `driver`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from kedge.agent.process.grpc_health import is_serving
from kedge.api.views import HTTPGetAction, Probe


async def probe_port(probe: Probe, record: Mapping[str, Any]) -> str:
    """Probe the process of a keeper's record. Returns why it does not pass; empty if it passes.

    Raises:
        OSError: it does not answer.
        ValueError: the probe names no port of the process, or cannot be sent.
    """
    if probe.http_get is not None:
        host = probe.http_get.host or record["address"]
        return await _http_problem(host, _port(probe.http_get.port, record), probe.http_get)
    if probe.tcp_socket is not None:
        host = probe.tcp_socket.host or record["address"]
        _, writer = await asyncio.open_connection(host, _port(probe.tcp_socket.port, record))
        writer.close()
        return ""
    if probe.grpc is not None:
        serves = await is_serving(record["address"], probe.grpc.port, probe.grpc.service)
        return "" if serves else f"service {probe.grpc.service!r} is not serving on port {probe.grpc.port}"
    return ""


def _port(port: int | str, record: Mapping[str, Any]) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    found = record["ports"].get(port)
    if found is None:
        raise ValueError(f"the container has no port named {port}: name one of its ports, or give a number")
    return int(found)


async def _http_problem(host: str, port: int, asked: HTTPGetAction) -> str:
    secure = None
    if asked.scheme.upper() == "HTTPS":  # as in Kubernetes, the certificate is not verified
        secure = ssl.create_default_context()
        secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=secure)
    headers = {"Host": host, "User-Agent": "kube-probe", "Connection": "close"}
    headers |= {each.name: each.value for each in asked.http_headers}
    if any(character in text for text in (asked.path, *headers, *headers.values()) for character in "\r\n"):
        raise ValueError("a probe's path or header contains a line break")
    lines = [f"GET {asked.path or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    try:
        writer.write("\r\n".join(lines).encode())
        words = (await reader.readline()).split()
    finally:
        writer.close()
    if len(words) < 2 or not words[1].isdigit():
        return "the answer is not HTTP"
    return "" if 200 <= int(words[1]) < 400 else f"HTTP probe failed with statuscode: {int(words[1])}"
