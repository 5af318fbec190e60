"""`/metrics`: the format that a scrape accepts, requests and their objective, and the listener of other processes."""

from __future__ import annotations

import pytest
from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.openmetrics import read_openmetrics
from tests.kit.raw_http import create_config_map, request, sent

from kedge.env import system_env
from kedge.errors import Unavailable
from kedge.server.http.metrics_listener import MetricsListener
from kedge.server.http.server import ApiServer

OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


async def scrape(port: int, accept: str = OPEN_METRICS, path: str = "/metrics") -> tuple[str, str]:
    """The head and the page."""
    asked = request("GET", path).replace(b"\r\n\r\n", f"\r\nAccept: {accept}\r\n\r\n".encode(), 1)
    head, _, body = (await exchange(port, asked, end=False)).partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def count(server: ApiServer, name: str, **labels: str) -> float:
    return server.handler._env.metrics.registry.get_sample_value(name, labels) or 0.0


@on_loop
async def test_a_strict_reader_of_openmetrics_reads_the_page_of_a_server() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        head, page = await scrape(port)
        assert "Content-Type: application/openmetrics-text; version=1.0.0" in head
        families = read_openmetrics(page)
        assert families["kedge_http_request_seconds"].unit == "seconds"
        assert families["kedge_http_requests"].type == "counter"
        assert "kedge_function_cache_bytes" in families
        head, page = await scrape(port, "text/plain")
        assert "Content-Type: text/plain; version=0.0.4" in head
        assert "# EOF" not in page


@on_loop
async def test_requests_are_timed_by_method_and_a_fault_of_the_server_is_a_bad_event() -> None:
    async with local_api() as (server, port):
        await create_config_map(port, "a")
        events = {"slo": "api-availability"}
        good = count(server, "kedge_slo_events_total", outcome="good", **events)
        code, _, _ = await sent(port, "GET", "/api/v1/namespaces/default/configmaps/missing")
        assert code == 404
        assert count(server, "kedge_slo_events_total", outcome="good", **events) == good + 1
        assert count(server, "kedge_http_request_seconds_count", method="GET") == 1
        assert count(server, "kedge_slo_events_total", outcome="bad", **events) == 0

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        server.handler._pages[b"/api"] = fail
        code, _, _ = await sent(port, "GET", "/api")
        assert code == 500
        assert count(server, "kedge_slo_events_total", outcome="bad", **events) == 1
        assert count(server, "kedge_slo_burn_ratio", window="5m", **events) > 0


@on_loop
async def test_a_process_without_an_api_serves_its_metrics_and_nothing_else() -> None:
    env = system_env()
    env.metrics.counter("kedge_queue_adds_total", "counted", ("queue",)).labels("web").inc(3)
    listener = MetricsListener(env)
    port = await listener.start("127.0.0.1", 0)
    try:
        _, page = await scrape(port)
        own = {each for each in read_openmetrics(page) if not each.startswith("kedge_function_cache_")}
        assert own - {"kedge_log_lines_dropped"} == {"kedge_queue_adds"}
        assert 'kedge_queue_adds_total{queue="web"} 3.0' in page
        for method, path in (("GET", "/"), ("POST", "/metrics"), ("GET", "/api")):
            code, _, body = await sent(port, method, path)
            assert (code, body["message"]) == (404, "this address has GET /metrics and nothing else")
        with pytest.raises(Unavailable, match="pass another --metrics-listen"):
            await MetricsListener(env).start("127.0.0.1", port)
    finally:
        await listener.stop()


@on_loop
async def test_a_server_that_answers_with_faults_is_past_the_alert_of_its_availability() -> None:
    async with local_api() as (server, _):
        assert server.past_alert() == []
        server.connections.count("GET", 404, 0.0)
        assert server.past_alert() == []
        for _ in range(5):
            server.connections.count("GET", 500, server.connections.env.monotonic())
        assert server.past_alert() == ["api-availability"]
