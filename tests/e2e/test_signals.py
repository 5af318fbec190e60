"""The signals of a running cluster: spans at an OTLP receiver, JSON log lines and Events, joined by the decision id."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.up_workload import MANIFEST, UpProcess, down_nodes
from tests.kit.loops import eventually, on_loop
from tests.kit.otlp_receiver import OtlpReceiver, otlp_receiver, values_of

from kedge.observe.readers.spans import span_id_of, trace_id_of

PATIENCE_S = 120.0


async def kedge(cluster: UpProcess, *words: str, stdin: str = "") -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "kedge", *words],
        env=cluster.client_environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(cluster: UpProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.log.splitlines() if line.startswith('{"time"')]


def decided(receiver: OtlpReceiver) -> dict[str, Any]:
    """Root spans by decision id."""
    found = {}
    for _, span in receiver.spans():
        if not span.parent_span_id:
            found[values_of(span.attributes)["kedge.decision"]] = span
    return found


def creates(receiver: OtlpReceiver) -> list[str]:
    """Decisions of the ReplicaSet controller that created pods."""
    return [
        values_of(span.attributes)["kedge.decision"]
        for resource, span in receiver.spans()
        if resource["service.name"] == "replicaset" and span.name == "ensure Pod"
    ]


@on_loop
async def test_spans_logs_and_events_of_a_cluster_are_joined_by_the_decision_id(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver:
        options = ("--nodes", "1", "--otlp-endpoint", receiver.url, "--log-format", "json", "--log-level", "info")
        cluster = UpProcess(tmp_path / "state", *options)
        await asyncio.to_thread(cluster.start)
        try:
            await kedge(cluster, "apply", "-f", "-", stdin=MANIFEST)
            await eventually(lambda: bool(creates(receiver)), within_s=PATIENCE_S)
            decision = creates(receiver)[0]
            await eventually(lambda: decision in decided(receiver), within_s=PATIENCE_S)
            scheduled = [name for name in decided(receiver) if name.startswith("default-scheduler:")]
            await eventually(
                lambda: any(
                    bytes(link.trace_id) == trace_id_of(decision)
                    for span in decided(receiver).values()
                    for link in span.links
                ),
                within_s=PATIENCE_S,
            )
            (line,) = [each for each in lines_of(cluster) if each.get("decision") == decision]
            events = json.loads(await kedge(cluster, "get", "events", "-o", "json"))["items"]
        finally:
            await asyncio.to_thread(cluster.stop)
            await asyncio.to_thread(down_nodes, cluster)
    assert bytes(decided(receiver)[decision].span_id) == span_id_of(decision)
    assert (line["message"], line["controller"], line["writes"] >= 1) == ("decision", "replicaset", True)
    assert line["key"].startswith("ReplicaSet.apps/default/web-")
    named = [each for each in events if each["metadata"]["annotations"]["kedge.dev/decision"] == decision]
    assert [each["reason"] for each in named] == ["SuccessfulCreate"], events
    assert all(name.count(":") == 2 for name in scheduled)
