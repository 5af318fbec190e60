"""Durations on the command line: `30s`, `2m`, `1h30m`, or seconds."""

from __future__ import annotations

import re

import click

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A duration in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        if not re.fullmatch(r"(\d+(\.\d+)?(h|ms|m|s))+", text):
            self.fail(f"{text!r} is no duration: write it like 30s, 2m or 1h30m", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", text))


DURATION = DurationType()
