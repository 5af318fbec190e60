"""The times of received entries: in records, and absent from those of before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from tests.kit.records import made

from kedge.kept import Section, parse_section
from kedge.observe.readers.recording import decode_recording
from kedge.observe.records import ReceivedChange, ReceivedEntry, ReceivedPart, RecordEncoder

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def part(*times: datetime | None) -> ReceivedPart:
    entries = []
    for place, at in enumerate(times, 1):
        found = made("Pod", f"web-{place}", place)
        change = ReceivedChange("added", found.key, found, place)
        entries.append(ReceivedEntry(place, "event", place, (change,), at))
    return ReceivedPart("one#1", ("run",), "Pod", 0, 0, (), tuple(entries))


def sections_of(found: ReceivedPart) -> list[Section]:
    return [parse_section(each) for each in RecordEncoder().received(found)]


def test_times_of_entries_are_kept_to_the_microsecond() -> None:
    times = [NOW, NOW + timedelta(microseconds=1), NOW + timedelta(hours=30), NOW - timedelta(seconds=2)]
    (found,) = decode_recording(sections_of(part(*times))).received
    assert [each.at for each in found.entries] == times
    assert [each.place for each in found.entries] == [1, 2, 3, 4]


def test_a_part_without_all_of_its_times_has_none() -> None:
    (found,) = decode_recording(sections_of(part(NOW, None))).received
    assert [each.at for each in found.entries] == [None, None]


def test_a_part_of_before_is_read_without_times() -> None:
    *versions, last = sections_of(part(NOW, NOW))
    body = msgspec.msgpack.decode(last.body)
    assert len(body) == 9
    old = Section(last.name, last.version, msgspec.msgpack.encode(body[:8]))
    (found,) = decode_recording([*versions, old]).received
    assert [(each.place, each.at) for each in found.entries] == [(1, None), (2, None)]
