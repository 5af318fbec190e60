"""Events as `events.k8s.io/v1`: the same stored objects as `v1`, through every verb."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import MERGE, STRATEGIC, create_config_map, request, sent

SERVED = "/apis/events.k8s.io/v1/namespaces/default/events"
STORED = "/api/v1/namespaces/default/events"
ABOUT = {"kind": "ConfigMap", "name": "a", "namespace": "default", "apiVersion": "v1"}


def served_event(name: str = "one", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/tests",
        "reportingInstance": "tests-1",
        "action": "Looked",
        "reason": "Seen",
        "type": "Normal",
        "note": "it is here",
        "regarding": ABOUT,
        **fields,
    }


@on_loop
async def test_an_event_has_the_fields_of_the_version_it_is_read_in() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, made = await sent(port, "POST", SERVED, served_event())
        _, _, core = await sent(port, "GET", f"{STORED}/one")
        core_event = {"metadata": {"name": "two"}, "involvedObject": ABOUT, "message": "m", "count": 3, "reason": "R"}
        times = {"firstTimestamp": "2025-12-31T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"}
        await sent(port, "POST", STORED, {**core_event, **times})
        _, _, two = await sent(port, "GET", f"{SERVED}/two")
    assert (code, made["apiVersion"], made["note"], made["regarding"]) == (201, "events.k8s.io/v1", "it is here", ABOUT)
    assert (core["apiVersion"], core["message"], core["involvedObject"]) == ("v1", "it is here", ABOUT)
    assert (core["reportingComponent"], core["eventTime"]) == ("example.com/tests", "2026-01-01T00:00:00.000000Z")
    assert not {"note", "regarding", "reportingController"} & set(core)
    assert core["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert (two["note"], two["deprecatedCount"]) == ("m", 3)
    assert two["eventTime"] == "2025-12-31T00:00:00.000000Z", "typed clients require it"
    assert two["deprecatedLastTimestamp"] == "2026-01-01T00:00:00Z"


@on_loop
async def test_lists_watches_and_tables_are_converted_and_selected_by_served_names() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        await sent(port, "POST", SERVED, served_event())
        other = served_event("other", regarding={**ABOUT, "name": "b"})
        await sent(port, "POST", SERVED, other)
        selector = "fieldSelector=regarding.name%3Da,reportingController%3Dexample.com/tests"
        _, _, found = await sent(port, "GET", f"{SERVED}?{selector}")
        refused, _, _ = await sent(port, "GET", f"{SERVED}?fieldSelector=involvedObject.name%3Da")
        wanted = request("GET", SERVED).replace(
            b"Host: x\r\n", b"Host: x\r\nAccept: application/json;as=Table;g=meta.k8s.io;v=v1\r\n"
        )
        table = json.loads((await exchange(port, wanted, end=False)).partition(b"\r\n\r\n")[2])
        watch = await exchange(port, request("GET", f"{SERVED}?watch=1&timeoutSeconds=1&{selector}"), end=False)
    assert found["apiVersion"] == "events.k8s.io/v1"
    assert [each["note"] for each in found["items"]] == ["it is here"]
    assert refused == 400
    names = [column["name"] for column in table["columnDefinitions"]]
    cells = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (cells["Object"], cells["Message"], cells["Source"]) == ("configmap/a", "it is here", "example.com/tests")
    assert b'"type":"ADDED"' in watch
    assert b'"apiVersion":"events.k8s.io/v1"' in watch
    assert b'"note":"it is here"' in watch


@on_loop
async def test_patches_and_updates_are_written_in_the_stored_version() -> None:
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        await sent(port, "POST", SERVED, served_event())
        code, _, patched = await sent(port, "PATCH", f"{SERVED}/one", series, STRATEGIC)
        await sent(port, "PATCH", f"{SERVED}/one", {"note": "again"}, MERGE)
        stale = {"metadata": {"resourceVersion": "1"}, "note": "late"}
        conflict, _, _ = await sent(port, "PATCH", f"{SERVED}/one", stale, MERGE)
        _, _, core = await sent(port, "GET", f"{STORED}/one")
        replaced, _, _ = await sent(port, "PUT", f"{SERVED}/one", {**patched, "metadata": {"name": "one"}, "note": "n"})
        _, _, last = await sent(port, "GET", f"{STORED}/one")
        gone, _, _ = await sent(port, "DELETE", f"{SERVED}/one")
        missing, _, _ = await sent(port, "GET", f"{STORED}/one")
    assert (code, patched["series"]["count"], patched["apiVersion"]) == (200, 2, "events.k8s.io/v1")
    assert (conflict, core["message"], core["series"]["count"], core["apiVersion"]) == (409, "again", 2, "v1")
    assert (replaced, last["message"], gone, missing) == (200, "n", 200, 404)


@on_loop
async def test_patches_at_once_lose_nothing() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        await sent(port, "POST", SERVED, served_event())
        labels = [{"metadata": {"labels": {f"l{number}": "x"}}} for number in range(8)]
        replies = await asyncio.gather(*(sent(port, "PATCH", f"{SERVED}/one", each, MERGE) for each in labels))
        _, _, found = await sent(port, "GET", f"{SERVED}/one")
    assert [code for code, _, _ in replies] == [200] * 8
    assert len(found["metadata"]["labels"]) == 8


@on_loop
async def test_a_new_event_of_this_version_has_stricter_rules() -> None:
    bad = served_event(reportingController="", deprecatedCount=3, type="Loud", note="x" * 1025)
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, status = await sent(port, "POST", SERVED, bad)
        wrong, _, _ = await sent(port, "POST", SERVED, {**served_event(), "apiVersion": "v1"})
    fields = {cause["field"] for cause in status["details"]["causes"]}
    assert (code, fields) == (422, {"reportingController", "deprecatedCount", "type", "note"})
    assert wrong == 400


@on_loop
async def test_discovery_and_openapi_list_the_version() -> None:
    async with local_api() as (_, port):
        _, _, listed = await sent(port, "GET", "/apis/events.k8s.io/v1")
        _, _, document = await sent(port, "GET", "/openapi/v3/apis/events.k8s.io/v1")
    assert [each["name"] for each in listed["resources"]] == ["events"]
    assert "regarding" in document["components"]["schemas"]["io.k8s.api.events.v1.Event"]["properties"]
