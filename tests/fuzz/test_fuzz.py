"""A short, seeded part of the fuzzers, and every input that ever broke something. `make fuzz` runs for longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.__main__ import WARM_REPLIES, MemoryGrowth, admin_certificate
from tests.fuzz.client_runs import TRANSPORTS, client_corpus, fuzz_client, fuzzed_client
from tests.fuzz.openapi import fuzz_openapi
from tests.fuzz.peer import Peer
from tests.fuzz.raw_cases import LAST, RawCase, smuggling_cases, table_cases
from tests.fuzz.requests import FuzzRequest
from tests.fuzz.runs import (
    check_nothing_half_written,
    check_tally,
    corpus,
    delete_created,
    fuzz_raw,
    fuzz_requests,
    prepare,
    send_raw_cases,
)
from tests.kit.api_server import local_api, running_server
from tests.kit.loops import on_loop

POD_LIST = "/api/v1/namespaces/default/pods"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
MEMBERS = ("apiVersion", "kind", "metadata", "spec", "status", "data", "roleRef", "subjects", "rules", "type")
fields = st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS, values))


@pytest.mark.parametrize(("name", "broken"), corpus(), ids=[name for name, _ in corpus()])
@on_loop
async def test_every_input_that_ever_broke_something_is_answered_now(name: str, broken: bytes) -> None:
    async with local_api() as (_, port):
        peer = Peer("127.0.0.1", port)
        await prepare(peer)
        made = peer.tally.replies
        await peer.send_raw(RawCase(name, (broken, LAST)))
        check_tally(peer.tally)
        assert peer.tally.replies > made, "the input has an answer"
        await check_nothing_half_written(peer)


@on_loop
async def test_a_request_whose_length_is_ambiguous_is_refused_and_its_connection_closed() -> None:
    async with local_api() as (_, port):
        for case in smuggling_cases():
            peer = Peer("127.0.0.1", port)
            await peer.send_raw(case)
            assert peer.tally.codes == {400: 1}, case


@on_loop
async def test_tricks_below_http_get_an_answer_or_a_closed_connection() -> None:
    async with local_api() as (server, port):
        peer = Peer("127.0.0.1", port)
        await prepare(peer)
        await send_raw_cases(peer, table_cases())
        await fuzz_raw(peer, 1, 400)
        check_tally(peer.tally)
        await check_nothing_half_written(peer)
        assert peer.tally.replies > 400
        assert not any(each.busy for each in server.connections.open)


@on_loop
async def test_any_method_on_any_path_with_any_body_gets_no_server_error() -> None:
    async with local_api() as (_, port):
        peer = Peer("127.0.0.1", port)
        await prepare(peer)
        await fuzz_requests(peer, 1, 2_000)
        check_tally(peer.tally)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(["pods", "services", "configmaps", "resourcequotas", "events"]),
    st.sampled_from(["POST", "PATCH"]),
    values | fields,
)
def test_bodies_of_any_json_get_no_server_error(plural: str, method: str, body: Any) -> None:
    @on_loop
    async def run() -> None:
        async with local_api() as (_, port):
            peer = Peer("127.0.0.1", port)
            await prepare(peer)
            place = POD_LIST.replace("pods", plural) + ("/a" if method == "PATCH" else "")
            sent = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
            await peer.send_requests([FuzzRequest(method, place, sent, json.dumps(body).encode())])
            check_tally(peer.tally)

    run()


def test_operations_of_the_openapi_documents_get_no_server_error(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="pip install kedge[dev] has it")
    with running_server(tmp_path / "state") as server:
        certificate = str(admin_certificate(server.state))
        tally = fuzz_openapi(
            server.url, str(server.state / "ca.crt"), certificate, seed_number=1, operations_max=30, examples=2
        )
        check_tally(tally)
        assert tally.cases >= 30


def test_a_run_whose_memory_grows_after_the_first_replies_fails() -> None:
    memory = MemoryGrowth()
    for replies, used_mb in ((WARM_REPLIES // 2, 100.0), (WARM_REPLIES, 130.0), (5 * WARM_REPLIES, 150.0)):
        memory.note(replies, used_mb)
    assert not memory.problem
    memory.note(6 * WARM_REPLIES, 157.0)
    assert "130 to 157 MB" in memory.problem


@on_loop
async def test_the_objects_of_a_round_are_deleted_after_it() -> None:
    async with local_api() as (server, port):
        peer = Peer("127.0.0.1", port)
        await prepare(peer)
        await fuzz_requests(peer, 3, 300)
        store = server.handler._service._core.store
        assert store.statistics().objects > 20
        await delete_created(peer)
        check_tally(peer.tally)
        left = (await store.list("ConfigMap")).entries
        assert not left
        assert not (await store.list("Node")).entries


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("name", "call"), client_corpus(), ids=[name for name, _ in client_corpus()])
@on_loop
async def test_every_call_that_ever_broke_a_client_is_answered_now(
    name: str, call: dict[str, Any], transport: str
) -> None:
    async with fuzzed_client(transport) as client:
        await client.send(call)
        assert not client.tally.faults, f"{name}: {client.tally.faults}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_hostile_calls_of_a_client_raise_only_declared_errors(transport: str) -> None:
    tally = fuzz_client(transport, 150, 1)
    assert not tally.faults, tally.faults
    assert len(tally.outcomes) > 3, "the calls hardly differ: the test is void"
