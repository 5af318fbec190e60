"""Times as objects hold them: RFC 3339 in UTC, to the second (`Time`) or to the microsecond (`MicroTime`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)


def format_time(moment: datetime) -> str:
    """`2006-01-02T15:04:05Z`, the form of `creationTimestamp` and conditions. Fractions are cut off."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f"{utc.year:04}-{utc.month:02}-{utc.day:02}T{utc.hour:02}:{utc.minute:02}:{utc.second:02}Z"


def format_micro_time(moment: datetime) -> str:
    """`2006-01-02T15:04:05.000000Z`, the form of leases."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f"{format_time(utc)[:-1]}.{utc.microsecond:06}Z"


def parse_time(text: str) -> datetime:
    """Parse either form, with any offset; digits past the microsecond are cut off.

    Raises:
        ValueError: not an RFC 3339 time.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time, such as 2006-01-02T15:04:05Z")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    micro = int((match[7] or "0")[:6].ljust(6, "0"))
    if match[8]:
        return datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC)
    hours, minutes = int(match[10]), int(match[11])
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text!r} has an offset out of range")
    offset = timedelta(hours=hours, minutes=minutes) * (-1 if match[9] == "-" else 1)
    local = datetime(year, month, day, hour, minute, second, micro, tzinfo=timezone(offset))
    try:
        return local.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None
