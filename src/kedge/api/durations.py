"""Durations as Go writes them: `1h30m`, `-1.5s`, `100ms`. Exact, in whole nanoseconds."""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
DURATION_MAX_NS = 2**63 - 1
_TEXT_LENGTH_MAX = 256


def parse_duration(text: str) -> int:
    """Nanoseconds.

    Raises:
        ValueError: not a Go duration, or longer than 292 years.
    """
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text[1:] if text[:1] == "+" else text)
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest) <= _TEXT_LENGTH_MAX:
        part = _PART.match(rest, at)
        if part is None:
            break
        whole, _, fraction = part[1].partition(".")
        unit = _UNITS[part[2]]
        total += int(whole or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        at = part.end()
    if at == 0 or at < len(rest):
        raise ValueError(f"{text!r} is not a duration, such as 1h30m or 1.5s")
    if total > DURATION_MAX_NS:
        raise ValueError(f"the duration {text!r} is out of range")
    return sign * total


def format_duration(nanoseconds: int) -> str:
    """The form Go prints: `1h30m0s`, `1.5s`, `100ms`."""
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left == 0:
        return "0s"
    if left < 10**9:
        unit = next(unit for unit in ("ms", "µs", "ns") if left >= _UNITS[unit])
        return f"{sign}{_decimal(left, _UNITS[unit])}{unit}"
    minutes, left = divmod(left, _UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(left, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    width = len(str(unit)) - 1
    return f"{whole}.{rest:0{width}}".rstrip("0")
