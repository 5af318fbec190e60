"""Go durations and RFC 3339 times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.durations import DURATION_MAX_NS, format_duration, parse_duration
from kedge.api.timestamps import format_micro_time, format_time, parse_time

zones = st.sampled_from([UTC, timezone(timedelta(hours=-7, minutes=30)), timezone(timedelta(hours=5, minutes=45))])
moments = st.builds(
    lambda micros, zone: (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).astimezone(zone),
    st.integers(-(2 * 10**15), 10**17),
    zones,
)


@given(st.integers(-DURATION_MAX_NS, DURATION_MAX_NS))
def test_a_duration_reads_back_as_it_was_written(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "nanoseconds", "printed"),
    [
        ("1h30m", 5400 * 10**9, "1h30m0s"), ("-1.5s", -1_500_000_000, "-1.5s"), ("0", 0, "0s"),
        ("100ms", 10**8, "100ms"),
        ("1us", 1000, "1µs"), ("1µs", 1000, "1µs"), ("+5ns", 5, "5ns"), ("1.h", 3600 * 10**9, "1h0m0s"),
        (".5m", 30 * 10**9, "30s"), ("90s", 90 * 10**9, "1m30s"), ("1.000000001s", 1_000_000_001, "1.000000001s"),
    ],
)  # fmt: skip
def test_durations_are_read_and_printed_as_in_go(text: str, nanoseconds: int, printed: str) -> None:
    assert parse_duration(text) == nanoseconds
    assert format_duration(nanoseconds) == printed


@pytest.mark.parametrize(
    "text", ["", "-", "1", "1d", "h", "1h 30m", "1h-30m", ".s", "1e3s", "300000h" * 40, "3000000h"]
)
def test_a_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(moments)
def test_a_time_reads_back_to_the_second_and_a_micro_time_exactly(moment: datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment
    assert parse_time(format_time(moment)) == moment.astimezone(UTC).replace(microsecond=0)
    assert len(format_time(moment)) == len("2006-01-02T15:04:05Z")
    assert len(format_micro_time(moment)) == len("2006-01-02T15:04:05.000000Z")


def test_times_are_written_in_utc() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2026-01-02T01:04:05Z"
    assert format_micro_time(moment) == "2026-01-02T01:04:05.000678Z"
    assert parse_time("2026-01-02T03:04:05.123456789+02:00") == datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "2026-01-02T25:04:05Z",
     "2026-01-02T03:04:05+25:00", "0001-01-01T00:00:00+14:00", "2026-01-02T03:04:05.Z"],
)  # fmt: skip
def test_a_malformed_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several messages, all ValueError
        parse_time(text)
