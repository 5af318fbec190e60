"""The members of every document of `-o json` are those that docs/observability.md lists, and no others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.kit.loops import eventually
from tests.kit.recorded_runs import small_run
from tests.objects import node, pod

from kedge.api.kinds import KINDS
from kedge.api.wellknown import KEDGE_API_VERSION, NODE_KIND, POD_KIND
from kedge.cli.debug_pages import cache_document, queue_document
from kedge.cli.record import windows_document
from kedge.cli.timeline import timeline_of
from kedge.cli.why import answer_about
from kedge.cli.wiring import ControlPlane, ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.keys import Key, Origin
from kedge.observe.readers.coupling import (
    Basis,
    Coupling,
    CouplingCycle,
    CouplingEdge,
    Fight,
    SharedLimit,
    TwoHops,
    Waking,
)
from kedge.observe.readers.why import evidence_of
from kedge.server.http.origins import origin_document
from kedge.server.service import Service
from kedge.server.service.version_origins import VersionOrigin
from kedge.store.memory import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
_ENVELOPE = {"apiVersion", "kind"}
Parts = dict[str, list[dict[str, Any]]]
"""Documents, and what they consist of, by the first column of the table."""


@cache
def rows() -> dict[str, set[str]]:
    """The members by row. Words in parentheses are about values."""
    table = PAGE.read_text(encoding="utf-8").partition("\n## Documents\n")[2]
    found = {}
    for line in table.splitlines():
        row = re.fullmatch(r"\| (?:an? )?(\w+ of )?`(\w+)` \| (.*) \|", line)
        if row:
            found[f"{row[1] or ''}{row[2]}"] = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row[3])))
    return found


def explanations() -> Iterator[dict[str, Any]]:
    recording = small_run().recording
    for key in evidence_of(recording).objects:
        if key.kind in (POD_KIND, "ReplicaSet.apps"):
            yield answer_about(key.name, key.namespace, evidence_of(recording)).document()


def timelines() -> Iterator[dict[str, Any]]:
    recording = small_run().recording
    for key in evidence_of(recording).objects:
        if key.kind in (POD_KIND, "ReplicaSet.apps"):
            found = timeline_of(key.name, key.namespace, recording)
            assert found is not None
            yield found.document()


def coupling() -> dict[str, Any]:
    edge = CouplingEdge(
        writer="a", reader="b", kind="Pod", field="status", waking=Waking.SILENT, basis=Basis.COUNTS
    )  # fmt: skip
    cycle = CouplingCycle((edge, replace(edge, writer="b", reader="a")), 1, 1.0)
    fight = Fight(("a", "b"), "Pod/default/web", "spec", 1, 1.0, ("1", "2"))
    limit = SharedLimit("quota", "compute", "a", "b", 1, 1, "text")
    return Coupling(
        controller="b", edges=(edge,), paths=(TwoHops(edge, edge),), cycles=(cycle,), fights=(fight,), limits=(limit,)
    ).document()


@cache
def reports() -> tuple[dict[str, Any], dict[str, Any]]:
    """The queues and caches of a control plane with a pod that waits."""

    async def made(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        env = system_env()
        service = Service(MemoryStore(env), env)
        client = Client(DirectTransport(service), env, component="test")
        await ensure_namespaces(client)
        plane = ControlPlane(DirectTransport(service), env, decisions=folder)
        running = asyncio.ensure_future(plane.run())
        try:
            await client.create(KINDS.of_key_kind(NODE_KIND), node("node-a", cpu="1"))
            await client.create(KINDS.of_key_kind(POD_KIND), pod("huge", cpu="64"), namespace="default")

            async def waits() -> bool:
                keys = [key for each in queue_document(plane, env)["queues"] for key in each["keys"]]
                return any(key["key"] == "Pod/default/huge" for key in keys)

            await eventually(waits, within_s=60)
            return queue_document(plane, env), cache_document(plane, env, 7)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with TemporaryDirectory() as folder:
        return asyncio.run(made(Path(folder)))


def members_of(parts: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The elements of nested lists."""
    found = list(parts)
    for name in names:
        found = [inner for each in found for inner in each[name]]
    return found


@cache
def documents() -> Parts:
    answers, lines, coupled = list(explanations()), list(timelines()), [coupling()]
    queues, caches = ([each] for each in reports())
    entries = members_of(lines, "entries")
    version = VersionOrigin(Key(POD_KIND, "default", "web"), 2, 1, Origin())
    return {
        "Explanation": [*answers, *members_of(answers, "parts")],
        "line of Explanation": members_of(answers, "evidence"),
        "Timeline": lines,
        "entry of Timeline": entries,
        "cause of Timeline": [each["cause"] for each in entries if each["cause"] is not None],
        "Coupling": coupled,
        "edge of Coupling": [*members_of(coupled, "edges"), *members_of(coupled, "cycles", "edges")],
        "cycle of Coupling": members_of(coupled, "cycles"),
        "fight of Coupling": members_of(coupled, "fights"),
        "limit of Coupling": members_of(coupled, "sharedLimits"),
        "QueueReport": queues,
        "queue of QueueReport": members_of(queues, "queues"),
        "key of QueueReport": members_of(queues, "queues", "keys"),
        "waker of QueueReport": members_of(queues, "queues", "keys", "wokenBy"),
        "CacheReport": caches,
        "cache of CacheReport": members_of(caches, "caches"),
        "VersionOrigin": [origin_document(version, 2)],
        "RecordingWindowList": [windows_document(KEDGE_API_VERSION, "RecordingWindow", [], datetime.now(UTC))],
    }


@pytest.mark.parametrize("name", rows())
def test_a_document_has_the_members_that_the_page_lists(name: str) -> None:
    found = documents()[name]
    assert found, "the test makes none"
    is_document = " of " not in name
    for each in found:
        assert each.keys() - _ENVELOPE == rows()[name] if is_document else each.keys() == rows()[name]
        assert not is_document or (each["apiVersion"], each["kind"]) == (KEDGE_API_VERSION, name)


def test_the_page_has_a_row_for_every_document_and_part() -> None:
    assert rows().keys() == documents().keys()
