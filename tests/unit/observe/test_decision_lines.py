"""Lines of agents, schedulers and API servers carry the id of their decision, and so do those of the layers below."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.agent import ONE_ATTEMPT, AgentHarness, with_agent
from tests.kit.api_server import exchange, local_api
from tests.kit.controllers import until
from tests.kit.log_output import CapturedLog, captured_log
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, request
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import node

from kedge.keys import NO_ORIGIN
from kedge.logs import DEBUG, DECISION, SystemLog
from kedge.server.http.resources import Resources

KEPT = replace(ONE_ATTEMPT, decisions_sample_every=1)
_log = logging.getLogger("kedge.client")


def log_each_write(transport: Any) -> None:
    """The transport writes a line for each write, with the decision that the request itself carries."""
    send = transport.send

    async def logged(sent: Any) -> Any:
        origin = getattr(getattr(sent, "options", None), "origin", NO_ORIGIN)
        if origin.decision:
            _log.info("%s by %s", sent.label, origin.decision)
        return await send(sent)

    transport.send = logged


def lines_below(log: CapturedLog) -> list[tuple[str, str]]:
    """The request and the decision of each line of the transport."""
    found = [each for each in log.documents if each["logger"] == "kedge.client"]
    assert all(each["message"].endswith(f" by {each.get('decision')}") for each in found), found
    return [(each["message"].partition(" by ")[0], each["decision"]) for each in found]


def decisions(log: CapturedLog) -> set[str]:
    return {each["decision"] for each in log.documents if each["message"] == "decision"}


@with_agent(KEPT)
async def test_an_agent_logs_its_acts_and_lines_below_a_sync_have_its_id(harness: AgentHarness) -> None:
    with captured_log() as log:
        harness.env = replace(harness.env, log=SystemLog(harness.env.metrics))
        log_each_write(harness.transport)
        harness.restart()
        await harness.in_contact()
        harness.worker(await harness.bound_pod())
        await until(lambda: harness.status().phase == "Running")
        await until(lambda: any(each["message"].startswith("create by") for each in log.documents))  # an Event
        assert {decision for _, decision in lines_below(log)} <= decisions(log)
        first = next(each for each in log.documents if each["message"] == "decision")
    assert (first["controller"], first["key"]) == ("agent-node-a", "Pod/default/web-0")
    assert DECISION.get() == ""


@with_scheduler()
async def test_lines_below_binds_and_reports_have_the_id_of_the_attempt(harness: SchedulerHarness) -> None:
    with captured_log(level=DEBUG) as log:  # an attempt that found no node wrote nothing
        harness.env = replace(harness.env, log=SystemLog(harness.env.metrics))
        log_each_write(harness.wire)
        await harness.open_for(node("node-a", cpu="2"))
        await harness.pod("small", cpu="1")
        await harness.pod("large", cpu="9")
        await harness.gang("one", "two", size=2, cpu="500m")
        await until(lambda: {"one", "two"} <= {each.key.name for each in harness.cluster.all("Pod") if bound(each)})
        await until(lambda: len(harness.reports("large")) == 1)
        await until(lambda: "delete" in [label for label, _ in lines_below(log)])  # the record of the gang
        await until(lambda: {each for _, each in lines_below(log)} <= decisions(log))
        below = lines_below(log)
    labels = [label for label, _ in below]
    assert {each: labels.count(each) for each in ("bind", "reserve")} == {"bind": 3, "reserve": 1}
    assert {"patch", "create"} <= set(labels)


def bound(pod: Any) -> bool:
    return bool(pod.edit()["spec"].get("nodeName"))


@on_loop
async def test_a_line_below_a_request_has_its_decision_and_a_later_one_of_the_connection_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a planted bug")

    decided = b"Host: x\r\nKedge-Decision: deployment:p-1:7"
    with captured_log() as log:
        async with local_api() as (_, port):
            await create_config_map(port, "web")
            monkeypatch.setattr(Resources, "serve", fail)
            patch = request("PATCH", f"{CONFIG_MAPS}/web", {"data": {"a": "1"}}, MERGE)
            keep = patch.replace(b"Connection: close\r\n", b"")
            await exchange(port, keep.replace(b"Host: x", decided) + patch, end=False)
        failed = [each for each in log.documents if each["message"].startswith("request PATCH")]
    assert [each.get("decision") for each in failed] == ["deployment:p-1:7", None], failed
