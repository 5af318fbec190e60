"""Records of other processes reach the page of a server while it is open, and leave nothing behind when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.otlp_receiver import otlp_receiver
from tests.kit.records import decision

from kedge.api.wellknown import RECORDING_WINDOW_KIND
from kedge.cli.growing_part import GrowingPart
from kedge.cli.incidents.recording_process import recording_process
from kedge.cli.incidents.servers import OwnIncidents
from kedge.cli.live_records import CollectedRecords
from kedge.cli.otlp_option import span_sender
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.errors import NotFound
from kedge.kept import HEADER, encode_end
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.spans import span_id_of
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.observe.records import RecordEncoder
from kedge.runtime.recording_windows import ADMISSION_KINDS
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

LIMITS = replace(Limits(), incident_live_s=0.05, incident_flush_s=0.05)
WAIT_S = 60.0


class Running(NamedTuple):
    client: Client
    folder: IncidentFolder
    recorder: Recorder
    """Of another process."""
    records: CollectedRecords


@asynccontextmanager
async def running(tmp_path: Path, limits: Limits = LIMITS) -> AsyncIterator[Running]:
    env = system_env(limits=limits)
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    folder = IncidentFolder(tmp_path / "incidents", env)
    own = OwnIncidents(folder)
    async with recording_process(
        client, env, tmp_path / "decisions", own, process="scheduler", rules=KeepRules()
    ) as recorder:
        yield Running(client, folder, recorder, CollectedRecords(client, folder, env, "https://127.0.0.1:1"))


async def arrived(records: CollectedRecords, wanted: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while wanted not in [each.id for each in records.recording().decisions]:
            await records.follow()
            await asyncio.sleep(0.05)


@on_loop
async def test_a_page_sees_decisions_from_before_it_was_opened_and_while_it_is_open(tmp_path: Path) -> None:
    async with running(tmp_path) as (client, folder, recorder, records):
        now = datetime.now(UTC)
        recorder.take(decision("before", began=now))
        await arrived(records, "before")
        recorder.take(decision("while it is open", began=now))
        await arrived(records, "while it is open")
        key = Key(RECORDING_WINDOW_KIND, "", records.window)
        assert (await client.get(key)).key == key
        await records.end()
        with pytest.raises(NotFound):
            await client.get(key)
        assert folder.listing() == []


@on_loop
async def test_a_page_with_too_many_records_begins_again(tmp_path: Path) -> None:
    async with running(tmp_path, replace(LIMITS, page_records_bytes_max=1)) as (client, _, recorder, records):
        recorder.take(decision("first", began=datetime.now(UTC)))
        await records.follow()
        key = Key(RECORDING_WINDOW_KIND, "", records.window)
        first = (await client.get(key)).uid
        async with asyncio.timeout(WAIT_S):
            while (await client.get(key)).uid == first:
                await records.follow()
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("slice_bytes", [1, 7, 1000, 10**6])
def test_a_part_is_decoded_as_it_arrives(slice_bytes: int) -> None:
    encoder, data = RecordEncoder(), bytearray(HEADER)
    for number in range(5):
        for section in encoder.decision(decision(f"number {number}")) or []:
            data += section
    data += encode_end(5)
    part = GrowingPart()
    for at in range(0, len(data), slice_bytes):
        part.add(bytes(data[at : at + slice_bytes]))
    assert [each.id for each in part.recording.decisions] == [f"number {number}" for number in range(5)]
    assert part.size == len(data)
    assert part.recording.gaps == []


@on_loop
async def test_an_agent_or_server_sends_the_spans_of_its_decisions_and_the_last_ones_when_it_ends(
    tmp_path: Path,
) -> None:
    env = system_env(limits=replace(LIMITS, otlp_every_s=0.01))
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    incidents = OwnIncidents(IncidentFolder(tmp_path / "incidents", env))
    async with otlp_receiver() as receiver, span_sender(receiver.url) as send:

        def sent() -> set[bytes]:
            return {bytes(span.span_id) for _, span in receiver.spans()}

        async with recording_process(
            client, env, tmp_path / "decisions", incidents, process="agent-n1", rules=KeepRules(), send_spans=send
        ) as recorder:
            recorder.take(decision("agent-n1:p:1", controller="agent-n1", kept="window"))
            await eventually(lambda: span_id_of("agent-n1:p:1") in sent())
            recorder.take(decision("agent-n1:p:2", controller="agent-n1", kept="window"))
        assert span_id_of("agent-n1:p:2") in sent()


@on_loop
async def test_a_change_of_an_admission_policy_opens_a_window_in_a_process_that_follows_them(tmp_path: Path) -> None:
    env = system_env(limits=LIMITS)
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    incidents = OwnIncidents(IncidentFolder(tmp_path / "incidents", env))
    async with recording_process(
        client, env, tmp_path / "decisions", incidents, process="server", rules=KeepRules(), ruled_kinds=ADMISSION_KINDS
    ) as recorder:
        spec = {"policyName": "freeze", "validationActions": ["Deny"]}
        await client.create(client.kinds.of_key_kind(ADMISSION_KINDS[1]), {"metadata": {"name": "now"}, "spec": spec})
        name = "admission ValidatingAdmissionPolicyBinding now"
        await eventually(lambda: [each.name for each in recorder.coverage().windows] == [name])
