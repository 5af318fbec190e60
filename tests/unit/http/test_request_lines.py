"""The log line of a request: user, verb, object, outcome, revisions, decision and operation, from one place."""

from __future__ import annotations

import msgspec
from tests.kit.api_server import exchange, local_api
from tests.kit.log_output import captured_log
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, request

from kedge.logs import DEBUG, INFO

ORIGIN = b"Host: x\r\nKedge-Decision: deployment:p-1:7\r\nKedge-Operation: deployment:p-1:7#1"


@on_loop
async def test_a_write_has_one_line_with_the_facts_of_an_audit_record() -> None:
    with captured_log(level=INFO) as log:
        async with local_api() as (_, port):
            await create_config_map(port, "web")
            patch = request("PATCH", f"{CONFIG_MAPS}/web", {"data": {"a": "1"}}, MERGE).replace(b"Host: x", ORIGIN)
            reply = await exchange(port, patch, end=False)
            await exchange(port, request("GET", f"{CONFIG_MAPS}/web"), end=False)
        version = msgspec.json.decode(reply.partition(b"\r\n\r\n")[2])["metadata"]["resourceVersion"]
        created, patched = [line for line in log.documents if line.get("key") == "ConfigMap/default/web"]
    assert (created["verb"], created["key"], created["outcome"]) == ("create", "ConfigMap/default/web", "done")
    assert patched["took_s"] >= 0
    before = created["revision"]
    del patched["time"], patched["took_s"]
    assert patched == {
        "level": "info",
        "logger": "kedge",
        "message": "request",
        "user": "test",
        "decision": "deployment:p-1:7",
        "operation": "deployment:p-1:7#1",
        "verb": "patch",
        "key": "ConfigMap/default/web",
        "outcome": "done",
        "code": 200,
        "revision_before": before,
        "revision": int(version),
    }


@on_loop
async def test_a_refused_write_has_its_error_and_the_version_that_it_would_have_replaced() -> None:
    with captured_log(level=INFO) as log:
        async with local_api() as (_, port):
            await create_config_map(port, "web")
            body = {"metadata": {"resourceVersion": "999999"}, "data": {"a": "1"}}
            reply = await exchange(port, request("PATCH", f"{CONFIG_MAPS}/web", body, MERGE), end=False)
        assert b" 409 " in reply.partition(b"\r\n")[0]
        line = [line for line in log.documents if line["message"] == "request"][-1]
    assert (line["outcome"], line["code"], line["revision_before"]) == ("Conflict", 409, 999999)


@on_loop
async def test_reads_are_logged_for_debugging_alone() -> None:
    with captured_log(level=DEBUG) as log:
        async with local_api() as (_, port):
            await create_config_map(port, "web")
            await exchange(port, request("GET", f"{CONFIG_MAPS}/web"), end=False)
            await exchange(port, request("GET", CONFIG_MAPS), end=False)
        read = [(line["verb"], line["key"]) for line in log.documents if line["level"] == "debug"]
    assert read == [("get", "ConfigMap/default/web"), ("list", "ConfigMap")]
