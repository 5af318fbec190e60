"""The span exporter against an OTLP/HTTP receiver on loopback, and against endpoints that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import click
import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.otlp_receiver import otlp_receiver, values_of
from tests.kit.records import call, decision, pod, read

from kedge.cli.otlp_endpoint import OtlpEndpoint, parse_headers
from kedge.env import Env, system_env
from kedge.errors import OperatingError, TooManyRequests, Unavailable
from kedge.keys import Origin
from kedge.limits import Limits
from kedge.observe.readers.spans import span_id_of, trace_id_of
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.span_exporter import SendSpans, SpanExporter

LIMITS = Limits(otlp_every_s=0.01, otlp_request_s=30.0, otlp_stop_s=30.0)


def metric(env: Env, name: str, **labels: str) -> float:
    return env.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(send: SendSpans, limits: Limits = LIMITS) -> AsyncIterator[tuple[Recorder, SpanExporter, Env]]:
    env = system_env(limits=limits)
    recorder = Recorder(env)
    exporter = SpanExporter(env, recorder, send)
    task = asyncio.ensure_future(exporter.run())
    try:
        yield recorder, exporter, env
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@on_loop
async def test_kept_decisions_arrive_as_linked_spans() -> None:
    async with otlp_receiver() as receiver:
        endpoint = OtlpEndpoint(receiver.url, {"x-api-key": "secret"})
        async with running(endpoint.send) as (recorder, exporter, env):
            wrote = pod("web-0", 7, origin=Origin("replicasets:p-1:1#1", "replicasets:p-1:1"))
            recorder.take(
                decision(
                    "replicasets:p-1:1",
                    [call("ensure", wrote.key, revision=7, reply=(wrote,))],
                    controller="replicasets",
                    kept="window",
                )
            )
            recorder.take(decision("deployments:p-1:1", [read(wrote)], kept="window"))
            recorder.take(decision("deployments:p-1:2", [read(wrote)]))  # kept by no rule, so not exported
            await eventually(lambda: exporter.statistics().sent == 2)
            assert (exporter.statistics().offered, metric(env, "kedge_otlp_sent_total")) == (2, 2)
        await endpoint.close()
    found = {bytes(span.span_id): (resource, span) for resource, span in receiver.spans()}
    assert set(found) >= {span_id_of("replicasets:p-1:1"), span_id_of("deployments:p-1:1")}
    assert span_id_of("deployments:p-1:2") not in found
    resource, woken = found[span_id_of("deployments:p-1:1")]
    assert resource == {
        "service.namespace": "kedge",
        "service.name": "deployments",
        "service.instance.id": "p-1",
    }
    (link,) = woken.links
    assert (link.trace_id, link.span_id) == (trace_id_of("replicasets:p-1:1"), span_id_of("replicasets:p-1:1"))
    assert values_of(link.attributes)["kedge.revision"] == 7
    (head,) = receiver.heads
    assert head.startswith("POST /v1/traces HTTP/1.1\r\n")
    assert "Content-Type: application/x-protobuf\r\n" in head
    assert "x-api-key: secret\r\n" in head


@on_loop
async def test_a_request_that_fails_for_a_while_is_sent_again_and_nothing_is_lost() -> None:
    async with otlp_receiver() as receiver:
        receiver.codes = [503, 429]
        receiver.reply_headers = "Retry-After: 0\r\n"
        endpoint = OtlpEndpoint(receiver.url, {})
        async with running(endpoint.send) as (recorder, exporter, env):
            recorder.take(decision("a:p:1", kept="window"))
            await eventually(lambda: exporter.statistics().sent == 1)
            assert (exporter.statistics().dropped, metric(env, "kedge_otlp_failures_total")) == (0, 2)
            assert "answered 429" in exporter.statistics().last_error
        await endpoint.close()
    assert [bytes(span.trace_id) for _, span in receiver.spans()] == [trace_id_of("a:p:1")]


@on_loop
async def test_a_batch_that_the_endpoint_rejects_is_dropped_and_the_next_is_sent() -> None:
    async with otlp_receiver() as receiver:
        receiver.codes = [400]
        endpoint = OtlpEndpoint(f"{receiver.url}/base/", {})
        async with running(endpoint.send) as (recorder, exporter, env):
            recorder.take(decision("a:p:1", kept="window"))
            await eventually(lambda: exporter.statistics().dropped == 1)
            recorder.take(decision("a:p:2", kept="window"))
            await eventually(lambda: exporter.statistics().sent == 1)
            assert metric(env, "kedge_otlp_dropped_total", why="rejected") == 1
        await endpoint.close()
    assert receiver.heads[0].startswith("POST /base/v1/traces ")
    assert [bytes(span.trace_id) for _, span in receiver.spans()] == [trace_id_of("a:p:2")]


@on_loop
async def test_an_endpoint_that_never_answers_costs_spans_and_no_decision() -> None:
    """The queue is bounded: a decision is taken at once, and the spans beyond the bound are counted as dropped."""
    limits = Limits(otlp_every_s=0.01, otlp_queue_max=5, otlp_request_s=3600.0, otlp_stop_s=0.05)
    async with otlp_receiver() as receiver:
        receiver.silent = True
        endpoint = OtlpEndpoint(receiver.url, {})
        async with running(endpoint.send, limits) as (recorder, exporter, env):
            recorder.take(decision("a:p:0", kept="window"))
            await eventually(lambda: bool(receiver.heads))
            for number in range(1, 13):
                recorder.take(decision(f"a:p:{number}", kept="window"))
            recorder.catch_up()
            assert [exporter.statistics().waiting, exporter.statistics().dropped] == [5, 8]
            assert recorder.coverage().held == 13
            assert metric(env, "kedge_otlp_dropped_total", why="queue full") == 8
        assert metric(env, "kedge_otlp_dropped_total", why="stopped") == 5
        assert exporter.statistics().waiting == 0
        await endpoint.close()


@on_loop
async def test_a_batch_for_an_endpoint_that_stays_away_is_dropped_in_the_end() -> None:
    tried = 0

    async def refuse(body: bytes) -> None:
        nonlocal tried
        tried += 1
        raise Unavailable(f"{len(body)} bytes were not sent")

    limits = Limits(otlp_every_s=0.01, otlp_retry_s_max=1.2)
    async with running(refuse, limits) as (recorder, exporter, env):
        recorder.take(decision("a:p:1", kept="window"))
        await eventually(lambda: exporter.statistics().dropped == 1)
        assert metric(env, "kedge_otlp_dropped_total", why="unreachable") == 1
    assert tried >= 1


@on_loop
async def test_the_last_spans_are_sent_when_the_process_ends() -> None:
    async with otlp_receiver() as receiver:
        endpoint = OtlpEndpoint(receiver.url, {})
        limits = Limits(otlp_every_s=3600.0, otlp_stop_s=30.0)
        async with running(endpoint.send, limits) as (recorder, exporter, _):
            await asyncio.sleep(0)  # it has begun
            recorder.take(decision("a:p:1", kept="window"))
        await endpoint.close()
    assert exporter.statistics().sent == 1
    assert [bytes(span.trace_id) for _, span in receiver.spans()] == [trace_id_of("a:p:1")]


# -- the endpoint ----------------------------------------------------------------------------------


@on_loop
async def test_the_error_of_an_endpoint_states_whether_to_send_again() -> None:
    async with otlp_receiver() as receiver:
        endpoint = OtlpEndpoint(receiver.url, {})
        for code, expected in ((502, Unavailable), (429, TooManyRequests), (400, OperatingError)):
            receiver.codes = [code]
            with pytest.raises(OperatingError) as raised:
                await endpoint.send(b"")
            assert type(raised.value) is expected
        await endpoint.close()
    with pytest.raises(Unavailable):
        await endpoint.send(b"")


def test_an_endpoint_must_be_an_address_of_http() -> None:
    for url in ("localhost:4318", "grpc://host:4317", "http://"):
        with pytest.raises(click.UsageError, match="must be an http or https address"):
            OtlpEndpoint(url, {})


def test_headers_are_read_as_open_telemetry_writes_them() -> None:
    assert parse_headers("authorization=Bearer%20abc, x-team = core ,,") == {
        "authorization": "Bearer abc",
        "x-team": "core",
    }
