"""Logs and traces of the parts as processes: JSON lines with the id of a decision, and spans of every component."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import MANIFEST, down_nodes, until
from tests.kit.api_server import ServerProcess
from tests.kit.loops import eventually, on_loop
from tests.kit.otlp_receiver import otlp_receiver

from kedge.keys import NODE_USER_PREFIX

PATIENCE_S = 180.0
WITHOUT_ID = ("the term of this leader", "the watch has moved")
"""Beginnings of messages that are about no decision. The start and end of a process are no lines of its log."""
DECIDERS = ("kedge-controllers", "kedge-scheduler", NODE_USER_PREFIX)
"""Users whose writes have a decision, but for those to `UNDECIDED`."""
UNDECIDED = (
    "Lease.coordination.k8s.io/",
    "Node/",
    "NodeAllocation.kedge.dev/",
    "NodeMetrics",
    "CertificateSigningRequest",
)
"""Heartbeats, terms, registration and credentials: a component writes them at fixed times."""


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]


def needs_id(line: dict[str, Any]) -> bool:
    if line["message"] == "request":
        decides = line["user"].startswith(DECIDERS) or line["user"].startswith("system:controller:")
        return decides and not line["key"].startswith(UNDECIDED)
    return not line["message"].startswith(WITHOUT_ID)


@pytest.mark.slow
@on_loop
async def test_every_component_logs_its_decisions_and_exports_them(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver:
        options = ("--log-format", "json", "--log-level", "info", "--otlp-endpoint", receiver.url)
        server = ServerProcess(tmp_path / "state", *options)
        await asyncio.to_thread(server.start)
        parts = Parts(server, tmp_path, *options)

        def services() -> set[str]:
            return {resource["service.name"] for resource, _ in receiver.spans()}

        def run(*words: str, **more: Any) -> str:
            return str(server.kubectl(*words, **more))

        try:
            await asyncio.to_thread(until, lambda: run("get", "nodes").count(" Ready") == 2, "two nodes are ready")
            await asyncio.to_thread(run, "apply", "-f", "-", stdin=MANIFEST)
            wanted = {"deployment", "replicaset", "default-scheduler"}
            await eventually(lambda: wanted <= services(), within_s=PATIENCE_S)
            await eventually(lambda: any(each.startswith("agent-") for each in services()), within_s=PATIENCE_S)
        finally:
            await asyncio.to_thread(parts.stop)
            await asyncio.to_thread(down_nodes, server)
            await asyncio.to_thread(server.stop)
        logs = {name: (tmp_path / f"{name}.log").read_text() for name in parts.running} | {"server": server.log}
    found = {name: lines_of(text) for name, text in logs.items()}
    bare = [each for lines in found.values() for each in lines if needs_id(each) and not each.get("decision")]
    assert not bare, bare
    for name in ("server", "controllers", "scheduler"):
        assert any(each.get("decision") for each in found[name]), name
    agents = [each for name in ("agent-a", "agent-b") for each in found[name] if each["message"] == "decision"]
    assert {each["decision"].partition(":")[0] for each in agents} <= {"agent-a", "agent-b"}
    assert agents
