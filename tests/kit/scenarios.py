"""Finished runs of the scenarios that ship with kedge: each is run once, however many tests look at it."""

from __future__ import annotations

import re
from functools import cache

from kedge.sim.scenario import ScenarioRun, load_scenario, run_scenario

_MASKS = (
    (re.compile(r"^\d\d:\d\d\.\d{3} +\d*", re.MULTILINE), "TIME REV"),
    (re.compile(r"@\d+"), "@REV"),
    (re.compile(r" \(\d+s old\)"), ""),
    (re.compile(r" \(\d+ times\)"), ""),
    (re.compile(r"\brevision \d+"), "revision REV"),
    (re.compile(r"\d+s old"), "AGE"),
    (re.compile(r"\b\d+s late"), "LATE"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-\d+)?"), "UID"),
    (re.compile(r"(?<=risk-api-)[a-z0-9]{10}"), "HASH"),
    (re.compile(r"-[0-9a-f]{8}\b"), "-ID"),
    (re.compile(r"to replace [0-9a-f]{8}"), "to replace UID"),
    (re.compile(r" +"), " "),
)


def masked(text: str) -> list[str]:
    """The lines of a text without times, revisions and ids, which are those of the run."""
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return [line.strip() for line in text.splitlines()]


@cache
def finished(name: str, without: str = "") -> ScenarioRun:
    return run_scenario(load_scenario(name), without=without)
