"""Slots: the number of the next pod."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kedge.api.names import subdomain_problem
from kedge.controllers.shared.slots import free_slots, slot_name, slot_of

NAMES = st.from_regex(r"[a-z]([-a-z0-9.]{0,300}[a-z0-9])?", fullmatch=True).filter(
    lambda name: not subdomain_problem(name)
)


def test_the_lowest_free_slots_are_filled_and_no_pod_is_renamed() -> None:
    there = {"web-0", "web-2", "web-5"}
    assert free_slots("web", 4, there.__contains__) == (1, 3, 4, 6)


def test_a_slot_is_taken_by_any_pod_with_its_name() -> None:
    assert free_slots("web", 1, {"web-0"}.__contains__) == (1,)
    assert free_slots("web", 0, {"web-0"}.__contains__) == ()


def test_a_name_of_another_owner_has_no_slot() -> None:
    assert slot_of("web", "web-3") == 3
    for name in ("web", "web-", "web-x", "web-03", "api-3", "web-1-0", "web-٣", "web--1"):
        assert slot_of("web", name) is None


@given(NAMES, st.integers(0, 10**9))
def test_a_slot_can_be_read_from_the_name_it_gives(owner: str, slot: int) -> None:
    name = slot_name(owner, slot)
    assert slot_of(owner, name) == slot
    assert not subdomain_problem(name)
