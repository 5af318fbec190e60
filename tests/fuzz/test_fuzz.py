"""A short, seeded part of the fuzzers, and every input that ever broke something. `make fuzz` runs for longer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.__main__ import WARM_REPLIES, MemoryGrowth, admin_certificate
from tests.fuzz.client_runs import TRANSPORTS, client_corpus, fuzz_client, fuzzed_client
from tests.fuzz.fuzzed_api import fuzzed_api
from tests.fuzz.identities import IDENTITIES
from tests.fuzz.openapi import fuzz_openapi
from tests.fuzz.peer import Peer
from tests.fuzz.raw_cases import LAST, RawCase, smuggling_cases, table_cases
from tests.fuzz.requests import FuzzRequest, fuzz_request
from tests.fuzz.runs import (
    check_nothing_half_written,
    check_tally,
    corpus,
    delete_created,
    fuzz_raw,
    fuzz_requests,
    send_raw_cases,
)
from tests.kit.api_server import local_api, running_server
from tests.kit.loops import on_loop

import kedge
from kedge.api.access import Caller
from kedge.api.http_batch import BATCH_PATH
from kedge.api.wellknown import ROTATE_KEYS_PATH

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
    async with fuzzed_api() as (_, peer):
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
    async with fuzzed_api() as (server, peer):
        await send_raw_cases(peer, table_cases())
        await fuzz_raw(peer, 1, 400)
        check_tally(peer.tally)
        await check_nothing_half_written(peer)
        assert peer.tally.replies > 400
        assert not any(each.busy for each in server.connections.open)


@on_loop
async def test_any_method_on_any_path_with_any_body_gets_no_server_error() -> None:
    async with fuzzed_api() as (_, peer):
        await fuzz_requests(peer, 1, 2_000)
        check_tally(peer.tally)


_OWN_PATH = re.compile(r"""["'](/(?:kedge|ui)/?[a-z/-]*)["']""")
"""A path of kedge's own, as the modules of the server write it."""


def test_every_path_of_the_servers_own_is_among_those_that_are_fuzzed() -> None:
    source = random.Random(1)
    drawn = [fuzz_request(source).target.partition("?")[0] for _ in range(20_000)]
    package = Path(kedge.__file__).parent
    files = [*package.glob("server/http/*.py"), *package.glob("ui/*.py"), package / "cli" / "debug_pages.py"]
    written = {each for file in files for each in _OWN_PATH.findall(file.read_text())} | {ROTATE_KEYS_PATH, BATCH_PATH}
    assert len(written) > 10, "the paths are not found where they are written: the test is void"
    assert [each for each in sorted(written) if not any(path.startswith(each) for path in drawn)] == []


@on_loop
async def test_fuzzed_requests_come_from_callers_with_and_without_rights() -> None:
    async with fuzzed_api() as (server, peer):
        seen: set[str] = set()
        authenticator = server.handler._authenticator
        known = authenticator.caller
        authenticator.caller = lambda request: _noted(seen, known(request))  # type: ignore[method-assign]
        await fuzz_requests(peer, 2, 2_000)
        check_tally(peer.tally)
        assert {each.user for each in IDENTITIES} <= seen
        assert peer.tally.codes[401]
        assert peer.tally.codes[403]


def _noted(seen: set[str], caller: Caller | None) -> Caller | None:
    seen.add("" if caller is None else caller.user)
    return caller


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(["pods", "services", "configmaps", "resourcequotas", "events"]),
    st.sampled_from(["POST", "PATCH"]),
    values | fields,
)
def test_bodies_of_any_json_get_no_server_error(plural: str, method: str, body: Any) -> None:
    @on_loop
    async def run() -> None:
        async with fuzzed_api() as (_, peer):
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
    async with fuzzed_api() as (server, peer):
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
