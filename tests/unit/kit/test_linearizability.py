"""The checker of histories: planted violations are found, valid histories are not blamed, and brute force agrees."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.linearizability import (
    LeaseValue,
    Operation,
    Outcome,
    Register,
    Rule,
    Verb,
    any_write,
    check_history,
    check_object,
    check_revisions,
    lease_rule,
    step,
)

OK, UNKNOWN = Outcome.OK, Outcome.UNKNOWN


def create(at_s: float, value: str, revision: int, **more: object) -> Operation:
    return replace(Operation(Verb.CREATE, OK, at_s, at_s + 1, value, revision), **more)  # type: ignore[arg-type]


def update(at_s: float, value: object, revision: int, expected: int = 0, **more: object) -> Operation:
    made = Operation(Verb.UPDATE, OK, at_s, at_s + 1, value, revision, expected)
    return replace(made, **more)  # type: ignore[arg-type]


def get(at_s: float, value: str, revision: int, **more: object) -> Operation:
    return replace(Operation(Verb.GET, OK, at_s, at_s + 1, value, revision), **more)  # type: ignore[arg-type]


def missing(at_s: float) -> Operation:
    return Operation(Verb.GET, Outcome.MISSING, at_s, at_s + 1)


def unknown(operation: Operation) -> Operation:
    return replace(operation, outcome=UNKNOWN, returned_s=math.inf, revision=0)


def lease(at_s: float, holder: str, transitions: int, revision: int, expected: int = 0) -> Operation:
    verb = Verb.UPDATE if expected else Verb.CREATE
    value = LeaseValue(holder, transitions, 15.0, f"w{revision}")
    return Operation(verb, OK, at_s, at_s + 1, value, revision, expected)


FIRST = create(0, "a", 5)
VALID: dict[str, Sequence[Operation]] = {
    "nothing": [],
    "reads follow writes": [missing(-2), FIRST, get(2, "a", 5), update(4, "b", 7, 5), get(6, "b", 7)],
    "a concurrent read sees either": [FIRST, update(4, "b", 7, 5), get(4, "a", 5), get(4, "b", 7)],
    "a lost reply takes effect late": [FIRST, unknown(update(2, "b", 0, 5)), get(4, "a", 5), get(9, "b", 8)],
    "a lost reply never takes effect": [FIRST, unknown(update(2, "b", 0, 5)), update(4, "c", 9, 5), get(9, "c", 9)],
    "a lost delete": [FIRST, unknown(Operation(Verb.DELETE, OK, 2, expected=5)), get(3, "a", 5), missing(9)],
    "created again after a lost delete": [
        FIRST, unknown(Operation(Verb.DELETE, OK, 2, expected=5)), create(9, "b", 30), get(12, "b", 30)
    ],
    "a conflict shows a lost write": [
        FIRST,
        unknown(update(2, "b", 0, 5)),
        Operation(Verb.UPDATE, Outcome.CONFLICT, 6, 7, "c", 8, 5),
        get(9, "b", 8),
    ],
    "an update of a write whose reply was lost": [
        FIRST, unknown(update(2, "b", 0, 5)), update(4, "c", 9, 8), get(9, "c", 9)
    ],
}  # fmt: skip
PLANTED: dict[str, Sequence[Operation]] = {
    "a stale read": [FIRST, update(4, "b", 7, 5), get(6, "a", 5)],
    "a lost update": [FIRST, update(4, "b", 7, 5), update(6, "c", 8, 5)],
    "an acknowledged write that is gone": [FIRST, missing(4)],
    "an acknowledged update that is gone": [FIRST, update(4, "b", 7, 5), update(6, "c", 9), get(8, "b", 7)],
    "a read that goes back": [FIRST, unknown(update(2, "b", 0, 5)), get(4, "b", 7), get(6, "a", 5)],
    "a value that no client wrote": [FIRST, get(4, "z", 5)],
    "a rejected write that took effect": [
        FIRST, Operation(Verb.UPDATE, Outcome.CONFLICT, 3, 4, "b", 6, 4), get(6, "b", 6)
    ],
    "an object created twice": [FIRST, create(4, "b", 7)],
    "a deleted object that returns": [FIRST, Operation(Verb.DELETE, OK, 3, 4, expected=5), get(6, "a", 5)],
    "a lost reply that takes effect twice": [
        FIRST, unknown(update(1, "b", 0)), get(2, "b", 7), update(4, "c", 8), get(6, "b", 9)
    ],
    "a conflict where there is none": [FIRST, Operation(Verb.UPDATE, Outcome.CONFLICT, 3, 4, "b", 5, 5)],
    "a read before the write began": [get(-5, "a", 5), FIRST],
    "revisions against the order": [FIRST, update(4, "b", 3)],
    "a fence that had moved": [FIRST, update(4, "b", 7, 5), Operation(Verb.CONFIRM, OK, 6, 7, expected=5)],
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_a_valid_history_has_an_order(name: str) -> None:
    assert check_object(VALID[name]) is None
    assert brute_force(VALID[name])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    found = check_object(PLANTED[name], key="x")
    assert found is not None
    assert found.key == "x"
    assert "not linearizable" in found.message
    assert not brute_force(PLANTED[name])


def test_a_lease_changes_hands_when_it_is_free_or_has_expired() -> None:
    begin = lease(0, "a", 0, 5)
    renewed = lease(10, "a", 0, 6, 5)
    assert check_object([begin, renewed, lease(26, "b", 1, 9, 6)], rule=lease_rule) is None
    released = replace(lease(12, "", 0, 7, 6), verb=Verb.UPDATE)
    assert check_object([begin, renewed, released, lease(14, "b", 1, 9, 7)], rule=lease_rule) is None
    assert check_object([begin, lease(30, "a", 1, 9, 5)], rule=lease_rule) is None


def test_two_holders_of_a_lease_are_found() -> None:
    begin = lease(0, "a", 0, 5)
    assert check_object([begin, lease(3, "b", 1, 9, 5)], rule=lease_rule) is not None, "the lease had not expired"
    late = [begin, lease(14, "a", 0, 6, 5), lease(20, "b", 1, 9, 6)]
    assert check_object(late, rule=lease_rule) is not None, "it had been renewed"
    assert check_object([begin, lease(30, "b", 0, 9, 5)], rule=lease_rule) is not None, "the term did not change"
    both = [begin, lease(30, "b", 1, 9, 5), lease(30, "c", 1, 10, 5)]
    assert check_object(both, rule=lease_rule) is not None, "both took it over"


def test_revisions_follow_real_time_over_all_objects() -> None:
    history = {"x": [create(0, "a", 9)], "y": [create(4, "b", 7)]}
    assert len(check_history(history)) == 1
    assert check_revisions([create(0, "a", 9), create(0.5, "b", 7)]) == []
    assert len(check_revisions([create(0, "a", 9), create(0.5, "b", 9)])) == 1


def brute_force(operations: Sequence[Operation], rule: Rule = any_write) -> bool:
    """Every order of every choice of the operations of unknown outcome."""
    required = [each for each in operations if each.outcome is not UNKNOWN]
    optional = [each for each in operations if each.outcome is UNKNOWN]
    for count in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, count):
            if any(_is_legal(order, rule) for order in itertools.permutations([*required, *chosen])):
                return True
    return False


def _is_legal(order: Sequence[Operation], rule: Rule) -> bool:
    for earlier, later in itertools.combinations(order, 2):
        if later.returned_s < earlier.invoked_s:
            return False
    state: Register | None = Register()
    for each in order:
        state = step(state, each, rule) if state is not None else None
    return state is not None


@st.composite
def tiny_histories(draw: st.DrawFn) -> list[Operation]:
    """A few operations with outcomes that mostly make no sense together."""
    made: list[Operation] = []
    revisions = st.integers(1, 4)
    for number in range(draw(st.integers(1, 5))):
        verb = draw(st.sampled_from(Verb))
        allowed = {
            Verb.GET: (OK, OK, Outcome.MISSING),
            Verb.CREATE: (OK, OK, Outcome.EXISTS, UNKNOWN),
            Verb.UPDATE: (OK, OK, Outcome.CONFLICT, Outcome.MISSING, UNKNOWN),
            Verb.DELETE: (OK, OK, Outcome.CONFLICT, Outcome.MISSING, UNKNOWN),
            Verb.CONFIRM: (OK, Outcome.CONFLICT),
        }[verb]
        outcome = draw(st.sampled_from(allowed))
        invoked_s = draw(st.integers(0, 5))
        writes = verb in (Verb.CREATE, Verb.UPDATE, Verb.DELETE)
        has_revision = outcome in (OK, Outcome.CONFLICT) and verb is not Verb.CONFIRM
        revision = draw(revisions) if has_revision else 0
        value = draw(st.sampled_from(("a", "b", f"own-{number}"))) if verb is not Verb.DELETE else None
        conditional = verb in (Verb.UPDATE, Verb.DELETE) and (outcome is Outcome.CONFLICT or draw(st.booleans()))
        expected = draw(revisions) if conditional or verb is Verb.CONFIRM else 0
        returned_s = math.inf if outcome is UNKNOWN else invoked_s + draw(st.integers(0, 3))
        assert writes or outcome is not UNKNOWN
        made.append(Operation(verb, outcome, invoked_s, returned_s, value, revision, expected))
    return made


@settings(max_examples=400, deadline=None)
@given(tiny_histories())
def test_the_search_and_brute_force_agree(history: list[Operation]) -> None:
    assert (check_object(history) is None) == brute_force(history)


def recorded(rng: random.Random, length: int) -> list[Operation]:
    """Operations of several clients on a correct register: each takes effect at a moment of its own, or is lost."""
    state, revision, made = Register(), 0, []
    for number in range(length):
        at_s = number + rng.random() * 0.5
        invoked_s, returned_s = at_s - rng.random() * 3, at_s + rng.random() * 3
        revision += rng.randrange(1, 4)
        verb = rng.choice((Verb.GET, Verb.CREATE, Verb.UPDATE, Verb.DELETE))
        expected = state.revision if verb in (Verb.UPDATE, Verb.DELETE) and state.revision else 0
        if expected and rng.random() < 0.2:
            expected = max(1, expected - 1)
        if verb is Verb.UPDATE and rng.random() < 0.1:
            expected = 0
        asked = Operation(verb, OK, invoked_s, returned_s, f"v{number}", revision, expected)
        if verb is Verb.GET:
            asked = replace(asked, value=state.value, revision=state.revision)
        after = step(state, asked)
        is_lost = rng.random() < 0.1 and asked.writes
        if after is not None and not (is_lost and rng.random() < 0.5):
            made.append(unknown(asked) if is_lost else asked)
            state = after
        elif is_lost:
            made.append(unknown(asked))
        elif verb is Verb.CREATE:
            made.append(replace(asked, outcome=Outcome.EXISTS, revision=0))
        elif state.revision == 0:
            made.append(replace(asked, outcome=Outcome.MISSING, revision=0, value=None))
        else:
            made.append(replace(asked, outcome=Outcome.CONFLICT, revision=state.revision))
    return made


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_long_histories_of_a_correct_register_are_valid(seed: int) -> None:
    history = recorded(random.Random(seed), 150)
    assert check_object(history) is None
    assert check_revisions(history) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_one_stale_read_in_a_long_history_is_found(seed: int) -> None:
    rng = random.Random(seed)
    history = recorded(rng, 100)
    writes = [each for each in history if each.verb is Verb.UPDATE and each.outcome is OK]
    if len(writes) > 1:
        old, new = writes[0], writes[-1]
        history.append(get(new.returned_s + 1, str(old.value), old.revision))
        assert check_object(history) is not None
