"""Rules of names, each at its limits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api import names

SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")


@pytest.mark.parametrize(
    ("problem_of", "good", "bad"),
    [
        (
            names.subdomain_problem,
            ["a", "a.b", "1a-b.c2", "a" * 253],
            ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a" * 254, "a\n", "é"],
        ),
        (names.label_problem, ["a", "1a-b", "a" * 63], ["", "a.b", "A", "a" * 64, "a-", "a\n"]),
        (names.label_1035_problem, ["a", "a1", "a" * 63], ["", "1a", "a.b", "a" * 64, "a-"]),
        (
            names.qualified_name_problem,
            ["a", "A_b.c-D", "example.com/x", f"{'a' * 253}/x", "x" * 63],
            ["", "/a", "a/", "a/b/c", "Example.com/x", "x" * 64, f"{'a' * 254}/x", "-a", "a b", "a\n", "_a"],
        ),
        (names.label_value_problem, ["", "a", "A_b.c-D", "1" * 63], ["-a", "a-", "a b", "1" * 64, "a/b", "a\n"]),
        (names.config_key_problem, ["a", "A_b.c-D", ".a", "a" * 253], ["", ".", "..", "..a", "a/b", "a" * 254, "a b"]),
        (names.env_name_problem, ["A", "a-b.c", "1", "ä"], ["", "a=b", "a\n", "\x7f"]),
        (names.port_name_problem, ["http", "a1", "1a", "a" * 15], ["", "1", "a--b", "-a", "A", "a" * 16, "a_b"]),
        (names.ip_problem, ["10.0.0.1", "::1"], ["", "x", "10.0.0.256", "10.0.0.1/8"]),
    ],
)
def test_names_are_checked_at_their_limits(problem_of: Callable[[str], str], good: list[str], bad: list[str]) -> None:
    for name in good:
        assert problem_of(name) == "", name
    for name in bad:
        assert problem_of(name), name


def test_ports_run_from_1_to_65535() -> None:
    assert [names.port_number_problem(n) == "" for n in (0, 1, 65535, 65536, -1)] == [False, True, True, False, False]


@given(st.text("abZ19-._/ \n", max_size=10))
def test_a_subdomain_matches_the_published_expression(name: str) -> None:
    expected = bool(SUBDOMAIN.match(name)) and not name.endswith("\n")
    assert (names.subdomain_problem(name) == "") is expected


def test_long_names_from_requests_are_not_kept_in_memory() -> None:
    calls: list[str] = []

    @names.remembered_name
    def length_of(name: str) -> int:
        calls.append(name)
        return len(name)

    for _ in range(3):
        assert (length_of("short"), length_of("x" * 10_000)) == (5, 10_000)
    assert calls.count("short") == 1
    assert len(calls) == 4


def test_a_remembered_function_has_a_bound_in_entries_and_in_bytes() -> None:
    computed: list[str] = []

    @names.remembered_name
    def length(name: str) -> int:
        computed.append(name)
        return len(name)

    for number in range(16_384 + 1):  # one more than are kept
        length(str(number))
    assert (length("16384"), computed.count("16384")) == (5, 1)
    assert (length("0"), computed.count("0")) == (1, 2)
    long = "a" * (253 + 1 + 63 + 1)
    assert length(long) == length(long) == len(long)
    assert computed.count(long) == 2
