"""Regular expressions of the source take linear time: many of them run on callers' input, on the event loop."""

from __future__ import annotations

import pytest
from tests.kit.regex_attacks import SourceRegex, source_regexes, superlinear_attack

_FOUND, _MADE = source_regexes()
_CHECKED_BEFORE = {"cli/resources/durations.py": r"(\d+(?:\.\d+)?)(h|ms|m|s)"}
"""Expressions that search, in linear time in texts that another expression has accepted before."""
_OF_OWN_TEXTS = ("cli/__init__.py", "cli/configuration/page.py", "sim/fault_table.py", "sim/scenario/story.py")
"""Modules that make an expression at run time, for a text of their own."""


def _is_checked_before(regex: SourceRegex) -> bool:
    return _CHECKED_BEFORE.get(regex.place.partition(":")[0]) == regex.pattern


@pytest.mark.parametrize("regex", _FOUND, ids=lambda regex: regex.place)
def test_a_regular_expression_takes_linear_time(regex: SourceRegex) -> None:
    if not _is_checked_before(regex):
        assert superlinear_attack(regex) is None, f"{regex.place}: {regex.pattern} backtracks: use ++ or *+"


def test_no_expression_is_made_of_what_callers_send() -> None:
    assert sorted(place.partition(":")[0] for place in _MADE) == sorted(_OF_OWN_TEXTS)


def test_every_exception_is_still_in_the_source() -> None:
    assert sum(map(_is_checked_before, _FOUND)) == len(_CHECKED_BEFORE)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"([+-]?)(\d+)?(?:\.(\d*))?([A-Za-z]*)([+-]?\d+)?", "fullmatch"),
        (r"(a+)+$", "match"),
        (r"(a|a)*b", "match"),
        (r"\d*\d*\d*x", "match"),
        (r"[^=]*?\s*=", "match"),
        (r"\d+s", "search"),
    ],
)
def test_the_check_finds_expressions_that_backtrack(pattern: str, method: str) -> None:
    assert superlinear_attack(SourceRegex("example", pattern, 0, (method,))) is not None
