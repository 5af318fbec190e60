"""Processes take part in an incident: they hide values alike, end with it whatever their clocks show, and go on if it
is removed by hand; what they could not send is stated."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.kit.full_disk import small_disk
from tests.kit.loops import eventually, on_loop
from tests.kit.records import decision, made, read

from kedge.api.kinds import KINDS
from kedge.api.requests import Patch, PatchType
from kedge.api.timestamps import format_time
from kedge.cli.incidents.history import IncidentHistory
from kedge.cli.incidents.incident_file import IncidentParts, merge_parts
from kedge.cli.incidents.recording_process import recording_process
from kedge.cli.incidents.servers import OwnIncidents
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.kept import Section, write_kept
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.recording import Recording, decode_recording, read_recording
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.observe.recording.segments import segments
from kedge.observe.records import CommitRecord, StoreState
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

WINDOW = KINDS.of_key_kind("RecordingWindow.kedge.dev")
LIMITS = Limits(incident_flush_s=0.02, decisions_quiet_per_s=0.0)
SECRET = made("Secret", "planted", 3, data={"password": "cGxhbnRlZA=="})
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Cluster:
    """A store, and the folder of one server."""

    env: Env
    client: Client
    folder: IncidentFolder
    path: Path

    @asynccontextmanager
    async def process(self, name: str, *, clock_s: float = 0.0) -> AsyncIterator[Recorder]:
        """A process whose clock is ahead by so much."""
        now = self.env.now
        env = replace(self.env, now=lambda: now() + timedelta(seconds=clock_s))
        async with recording_process(
            self.client, env, self.path / name, OwnIncidents(self.folder), process=name, rules=KeepRules()
        ) as recorder:
            yield recorder

    async def start(self, name: str) -> None:
        now = self.env.now()
        spec = {"until": format_time(now + timedelta(hours=1)), "since": format_time(now), "collect": True}
        await self.client.create(WINDOW, {"metadata": {"name": name}, "spec": spec})

    async def stop(self, name: str) -> None:
        spec = {"until": format_time(self.env.now()), "stopped": True}
        await self.client.send(Patch(self.key(name), {"spec": spec}, PatchType.MERGE))

    def key(self, name: str) -> Key:
        return Key(WINDOW.key_kind, "", name)

    async def taking_part(self, incident: str, count: int) -> None:
        await eventually(lambda: len(self.processes(incident)) == count)

    def processes(self, incident: str) -> list[str]:
        found = {each.name: each for each in self.folder.listing()}.get(incident)
        return [] if found is None else [each.name for each in found.processes]

    def all_done(self, incident: str) -> bool:
        return all(each.done for each in self.folder.find(incident).processes)

    def recordings(self, incident: str) -> list[Recording]:
        place = self.path / "incidents" / incident
        return [read_recording(each) for each in sorted(place.glob("*/*")) if each.is_file() and each.name[0] != "."]


@asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[Cluster]:
    env = system_env(limits=LIMITS)
    store = MemoryStore(env)
    client = Client(DirectTransport(Service(store, env)), env, component="test")
    yield Cluster(env, client, IncidentFolder(path / "incidents", env), path)
    await store.close()


def seen_secrets(found: Recording) -> set[bytes]:
    steps = (step for each in found.decisions for step in each.steps)
    return {one.value for step in steps for one in getattr(step, "objects", ()) if one.key == SECRET.key}


@on_loop
async def test_processes_of_one_incident_hide_a_value_alike(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world, world.process("a") as one, world.process("b") as two:
        await world.start("first")
        await world.taking_part("first", 2)
        for recorder in (one, two):
            recorder.take(decision("d-1", [read(SECRET, cache="Secret")], began=world.env.now(), kept="other: a test"))
        await asyncio.sleep(0.1)
        await world.stop("first")
        await eventually(lambda: world.all_done("first"))
        values = [seen_secrets(each) for each in world.recordings("first") if each.decisions]
        assert len(values) == 2
        assert values[0] == values[1] != set()
        assert b"cGxhbnRlZA" not in b"".join(values[0])


@pytest.mark.parametrize("clock_s", [-400.0, 400.0])
@on_loop
async def test_a_process_with_a_wrong_clock_sends_when_the_incident_is_stopped(clock_s: float, tmp_path: Path) -> None:
    async with cluster(tmp_path) as world, world.process("a", clock_s=clock_s):
        await world.start("first")
        await world.taking_part("first", 1)
        await world.stop("first")
        await eventually(lambda: world.all_done("first"))


@pytest.mark.parametrize("steps_s", [-400.0, 400.0])
@on_loop
async def test_a_process_whose_clock_is_stepped_in_an_incident_sends_what_it_recorded_then(
    steps_s: float, tmp_path: Path
) -> None:
    """A step of the machine's clock changes the times of its files too."""
    async with cluster(tmp_path) as world, world.process("a") as recorder:
        await world.start("first")
        await world.taking_part("first", 1)
        recorder.take(decision("d-1", began=world.env.now(), kept="other: a test"))
        stepped = world.env.now() + timedelta(seconds=steps_s)
        recorder.take(decision("d-2", began=stepped, kept="other: a test"))
        await eventually(lambda: b"d-2" in b"".join(each.read_bytes() for each in segments(tmp_path / "a").values()))
        for each in segments(tmp_path / "a").values():
            os.utime(each, (stepped.timestamp(), stepped.timestamp()))
        await world.stop("first")
        await eventually(lambda: world.all_done("first"))
        assert [each.id for one in world.recordings("first") for each in one.decisions] == ["d-1", "d-2"]


@on_loop
async def test_a_window_that_is_removed_by_hand_ends_an_incident_and_the_next_one_is_recorded(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world, world.process("a") as recorder:
        await world.start("first")
        await world.taking_part("first", 1)
        await world.client.delete(world.key("first"))
        await world.start("second")
        await world.taking_part("second", 1)
        recorder.take(decision("d-1", began=world.env.now(), kept="other: a test"))
        await world.stop("second")
        await eventually(lambda: world.all_done("second"))
        assert [each.id for one in world.recordings("second") for each in one.decisions] == ["d-1"]
        assert not world.all_done("first"), "its records are not complete, and nothing claims that they are"


@on_loop
async def test_the_start_and_the_end_of_a_process_are_in_its_log_with_its_limits(tmp_path: Path) -> None:
    async with cluster(tmp_path) as world:
        async with world.process("a") as recorder:
            recorder.take(decision("d-1", began=world.env.now(), process="p-1", kept="other: a test"))
        found = [read_recording(each) for each in segments(tmp_path / "a").values()]
        events = [event for each in found for event in each.outside]
    assert [(each.kind, each.where) for each in events][:1] == [("start", "a")]
    assert (events[-1].kind, events[-1].where) == ("end", "a")
    (limits,) = [each.data for each in events if "limits" in each.data]
    assert limits["deciders"] == ["p-1"]
    assert limits["limits"]["incident_flush_s"] == 0.02


@on_loop
async def test_a_history_goes_on_after_a_disk_that_was_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        async with cluster(disk) as world:
            namespace = KINDS.of_key_kind("Namespace")
            history = IncidentHistory(world.client, world.env, OwnIncidents(world.folder), process="server")
            running = asyncio.ensure_future(history.run())
            await world.start("first")
            await world.taking_part("first", 1)
            await eventually(lambda: world.folder.find("first").bytes > 0)
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 12))
            for number in range(200):
                body = {"metadata": {"name": f"n-{number}", "annotations": {"a": "x" * 500}}}
                await world.client.create(namespace, body)
            await asyncio.sleep(1.5)  # a flush that fails
            (disk / "filler").unlink()
            await world.stop("first")
            await eventually(lambda: world.all_done("first"))
            (found,) = world.recordings("first")
            running.cancel()
            written = {each.key.name for commit in found.commits for each in commit.written}
            assert {f"n-{number}" for number in range(200)} <= written
            assert found.gaps == []


# -- the merge --------------------------------------------------------------------------------------


def part(folder: Path, name: str, sections: list[Section] | bytes) -> IncidentParts:
    path = folder / f"{name}.kedge"
    if isinstance(sections, bytes):
        path.write_bytes(sections)
    else:
        write_kept(path, sections)
    return IncidentParts(name, done=True, files=[path])


def encoded(recording: Recording) -> list[Section]:
    from kedge.kept import parse_section
    from kedge.observe.records import RecordEncoder

    encoder = RecordEncoder()
    streams = (
        *(encoder.state(each) for each in recording.states),
        *(encoder.commit(each) for each in recording.commits),
        *(encoder.decision(each) or [] for each in recording.decisions),
    )
    return [parse_section(each) for stream in streams for each in stream]


def merged(*parts: IncidentParts) -> tuple[tuple[str, ...], Recording]:
    summary, recording = merge_parts("first", NOW, NOW + timedelta(minutes=1), parts, kedge="0")
    return summary.gaps, recording


def kept_at(name: str, seconds: float, kept: str = "window: first") -> Recording:
    return Recording(decisions=[decision(name, began=NOW + timedelta(seconds=seconds), kept=kept)])


def test_decisions_of_a_window_are_in_the_file_whatever_the_clock_of_their_process_was(tmp_path: Path) -> None:
    ahead = part(tmp_path, "ahead", encoded(kept_at("d-1", 400)))
    behind = part(tmp_path, "behind", encoded(kept_at("d-2", -400)))
    other = part(tmp_path, "other", encoded(kept_at("d-3", -400, "window: before")))
    _, found = merged(ahead, behind, other)
    assert [each.id for each in found.decisions] == ["d-2", "d-1"]


def test_decisions_around_a_step_of_the_clock_are_in_the_file_and_those_before_the_incident_are_not(
    tmp_path: Path,
) -> None:
    """The order of the log has them, whatever rule kept them. The clock shows times that it had shown before."""
    before, late = kept_at("d-1", -300, "retry"), kept_at("d-5", -350, "input: of d-4")
    inside = (kept_at("d-2", 5), kept_at("d-3", -390, "failure: Conflict"), late, kept_at("d-4", -380))
    files = [part(tmp_path, f"{number}", encoded(each)).files[0] for number, each in enumerate((before, *inside))]
    _, found = merged(IncidentParts("a", done=True, files=files))
    assert {each.id for each in found.decisions} == {"d-2", "d-3", "d-4"}


@pytest.mark.parametrize("garbage", [b"nothing of a kept file", bytes(5_000)])
def test_a_part_that_is_garbage_is_stated_and_the_others_are_used(garbage: bytes, tmp_path: Path) -> None:
    gaps, found = merged(part(tmp_path, "bad", garbage), part(tmp_path, "good", encoded(kept_at("d-1", 1))))
    assert [each.id for each in found.decisions] == ["d-1"]
    assert [each for each in gaps if each.startswith("bad: ")]


def test_a_part_that_is_damaged_in_the_middle_is_stated_and_its_rest_is_used(tmp_path: Path) -> None:
    several = Recording(decisions=[*kept_at("d-1", 1).decisions, *kept_at("d-2", 2).decisions])
    whole = part(tmp_path, "cut", encoded(several))
    data = bytearray(whole.files[0].read_bytes())
    data[data.index(b"d-1")] ^= 1
    whole.files[0].write_bytes(data)
    gaps, found = merged(whole)
    assert [each.id for each in found.decisions] == ["d-2"]
    assert [each for each in gaps if each.startswith("cut: ")]


def test_versions_of_decisions_that_no_process_sent_are_stated(tmp_path: Path) -> None:
    """As after a disk that was full: the log of the process lost them."""
    lost = made("Pod", "a", 5, "default-scheduler:run-1:7")
    history = Recording(states=[StoreState(4, NOW, ())], commits=[CommitRecord(5, NOW, (lost,))])
    gaps, _ = merged(part(tmp_path, "server", encoded(history)))
    assert "1 versions were written by decisions of default-scheduler:run-1 that no process sent" in gaps


def test_a_recording_of_the_merge_can_be_decoded_again(tmp_path: Path) -> None:
    _, found = merged(part(tmp_path, "one", encoded(kept_at("d-1", 1))))
    assert [each.id for each in decode_recording(encoded(found)).decisions] == ["d-1"]
