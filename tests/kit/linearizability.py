"""Decides whether recorded histories of clients are linearizable. Pure: operations in, violations out.

The model is one object: a value with the revision of its last write. Create, update, delete and confirm have the
preconditions of the API; an operation of unknown outcome takes effect at any time after it was sent, or never. A rule
can narrow which writes are legal, as `lease_rule` does. The search is that of Wing and Gong with Lowe's memory of the
configurations already tried. Each object is checked alone, so commits of several objects are not checked as one:
`check_revisions` compares the revisions of all of them with real time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

UNSEEN = -1
"""The revision of a write whose reply was lost, until an operation shows it."""
STEPS_MAX = 2_000_000
"""Bound of one search. A history that needs more is reported as undecided, which is no success."""


class Verb(Enum):
    GET = "get"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    CONFIRM = "confirm"
    """A proof that the object is at a revision, as a fenced commit makes of its fence."""


class Outcome(Enum):
    OK = "ok"
    CONFLICT = "conflict"
    """The object is there, and not at the expected revision."""
    MISSING = "missing"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client on one object. A call that was certainly not carried out is not recorded."""

    verb: Verb
    outcome: Outcome
    invoked_s: float
    returned_s: float = math.inf
    """Infinite if the outcome is unknown."""
    value: Hashable = None
    """The value that it writes or, for a get, the value that it returned."""
    revision: int = 0
    """The revision in the reply: of the write, of the object that was read or that it conflicts with; 0: none."""
    expected: int = 0
    """The revision that the object must have; 0 for any."""
    client: str = ""

    @property
    def writes(self) -> bool:
        return self.verb in (Verb.CREATE, Verb.UPDATE, Verb.DELETE)


class Register(NamedTuple):
    """The state of one object."""

    value: Hashable = None
    revision: int = 0
    """0 if the object is absent, `UNSEEN` if no reply has shown it yet."""
    floor: int = 0
    """No smaller revision can follow; the revision itself is not smaller if it is `UNSEEN`."""
    since_s: float = 0.0
    """The earliest time of the last write."""
    excluded: frozenset[int] = frozenset()
    """Revisions that an `UNSEEN` one is known not to be."""


Rule = Callable[[Register, Operation], bool]
"""Whether an operation may write in this state, apart from its precondition."""


class LeaseValue(NamedTuple):
    """The value of a lease."""

    holder: str
    transitions: int
    duration_s: float
    writer: str = ""
    """The id of the operation that wrote it."""


def any_write(before: Register, operation: Operation) -> bool:
    del before, operation
    return True


def lease_rule(before: Register, operation: Operation) -> bool:
    """A lease changes hands only when it is free or has expired; each time it has one transition more."""
    old, new = before.value, operation.value
    if not isinstance(old, LeaseValue) or not isinstance(new, LeaseValue):
        return True  # created or deleted
    if new.holder in ("", old.holder):
        return new.transitions in (old.transitions, old.transitions + (new.holder != ""))
    expired = operation.returned_s >= before.since_s + old.duration_s
    return new.transitions == old.transitions + 1 and (not old.holder or expired)


# -- the model ---------------------------------------------------------------------------------------


def step(state: Register, operation: Operation, rule: Rule = any_write) -> Register | None:
    """The state after an operation, or None if it cannot have had this outcome in this state."""
    match operation.outcome:
        case Outcome.MISSING:
            return state if state.revision == 0 else None
        case Outcome.EXISTS:
            return state if state.revision != 0 else None
        case Outcome.CONFLICT:
            if state.revision == 0 or operation.expected in (state.revision, operation.revision):
                return None
            return _at(state, operation.revision) if operation.revision else _not_at(state, operation.expected)
        case Outcome.OK | Outcome.UNKNOWN:
            return _carried_out(state, operation, rule)


def _carried_out(state: Register, operation: Operation, rule: Rule) -> Register | None:
    if operation.verb is Verb.CREATE:
        return None if state.revision else _written(state, operation, rule)
    if state.revision == 0:
        return None
    if operation.verb is Verb.GET:
        return _at(state, operation.revision) if operation.value == state.value else None
    found = _at(state, operation.expected) if operation.expected else state
    if found is None or operation.verb is Verb.CONFIRM:
        return found
    return _written(found, operation, rule)


def _at(state: Register, revision: int) -> Register | None:
    """The state, if the object can be at this revision."""
    if state.revision == UNSEEN and revision >= state.floor and revision not in state.excluded:
        return state._replace(revision=revision, floor=revision, excluded=frozenset())
    return state if state.revision == revision else None


def _not_at(state: Register, revision: int) -> Register:
    return state._replace(excluded=state.excluded | {revision}) if state.revision == UNSEEN else state


def _written(state: Register, operation: Operation, rule: Rule) -> Register | None:
    if not rule(state, operation):
        return None
    floor = operation.revision or state.floor + 1
    if floor <= state.floor:
        return None
    since_s = 0.0 if rule is any_write else max(state.since_s, operation.invoked_s)
    if operation.verb is Verb.DELETE:
        return Register(None, 0, floor, since_s)
    return Register(operation.value, operation.revision or UNSEEN, floor, since_s)


# -- the search --------------------------------------------------------------------------------------


class Violation(NamedTuple):
    """A history with no legal order, and the operations that could not come next where the search got furthest."""

    key: str
    message: str


class _Configuration(NamedTuple):
    """Which operations have been ordered, and the state after them."""

    first: int
    """All required operations before this index are ordered."""
    later: int
    """Bits of those that are ordered from `first` on."""
    writes: int
    """How many of the required writes with a revision are ordered: they follow their revisions."""
    used: int
    """Bits of the operations of unknown outcome that took effect."""
    state: Register


class _Search:
    """One history of one object."""

    def __init__(self, operations: Sequence[Operation], rule: Rule) -> None:
        known = _with_learned_revisions(operations)
        self.required = sorted((each for each in known if _is_required(each)), key=lambda each: each.invoked_s)
        self.optional = [each for each in known if not _is_required(each)]
        self._rule = rule
        by_revision = sorted(
            (each.revision, place) for place, each in enumerate(self.required) if each.writes and _has_revision(each)
        )
        self._write_order = {place: order for order, (_, place) in enumerate(by_revision)}
        self.furthest = 0
        self.stuck: _Configuration | None = None

    def run(self) -> bool | None:
        """Whether a legal order exists; None if the search was too long."""
        stack = [_Configuration(0, 0, 0, 0, Register())]
        tried = set(stack)
        for _ in range(STEPS_MAX):
            if not stack:
                return False
            here = stack.pop()
            if here.first == len(self.required):
                return True
            self._note(here)
            # The last one pushed is tried first: required operations before those that may never have happened.
            for following in reversed(self._following(here)):
                if following not in tried:
                    tried.add(following)
                    stack.append(following)
        return None

    def _note(self, here: _Configuration) -> None:
        done = here.first + here.later.bit_count()
        if self.stuck is None or done > self.furthest:
            self.furthest, self.stuck = done, here

    def _following(self, here: _Configuration) -> list[_Configuration]:
        found: list[_Configuration] = []
        latest_s = math.inf
        for place in self._unordered(here):
            operation = self.required[place]
            if operation.invoked_s > latest_s:
                break  # another one had returned before it was sent, and so did all that follow
            latest_s = min(latest_s, operation.returned_s)
            order = self._write_order.get(place)
            if order is not None and order != here.writes:
                continue
            after = step(here.state, operation, self._rule)
            if after is None:
                continue
            following = self._ordered(here, place, after, writes=here.writes + (order is not None))
            if after == here.state:
                return [following]  # it changes nothing, so no order is lost by placing it as early as possible
            found.append(following)
        for number, operation in enumerate(self.optional):
            if operation.invoked_s <= latest_s and not here.used >> number & 1:
                after = step(here.state, operation, self._rule)
                if after is not None:
                    found.append(here._replace(used=here.used | 1 << number, state=after))
        return found

    def _unordered(self, here: _Configuration) -> Iterator[int]:
        return (place for place in range(here.first, len(self.required)) if not here.later >> (place - here.first) & 1)

    def _ordered(self, here: _Configuration, place: int, state: Register, *, writes: int) -> _Configuration:
        later = here.later | 1 << (place - here.first)
        first = here.first
        while later & 1:
            later >>= 1
            first += 1
        return _Configuration(first, later, writes, here.used, state)

    def explanation(self) -> str:
        here = self.stuck
        if here is None:
            return "no operation was placed"
        latest_s, candidates = math.inf, []
        for place in self._unordered(here):
            if self.required[place].invoked_s > latest_s:
                break
            candidates.append(self.required[place])
            latest_s = min(latest_s, candidates[-1].returned_s)
        return (
            f"{self.furthest} of {len(self.required)} operations have an order, which leaves {here.state};"
            f" none of these can be next: {candidates}"
        )


def _is_required(operation: Operation) -> bool:
    return operation.outcome is not Outcome.UNKNOWN


def _has_revision(operation: Operation) -> bool:
    return operation.outcome is Outcome.OK and operation.revision > 0


def _with_learned_revisions(operations: Sequence[Operation]) -> list[Operation]:
    """A write of unknown outcome whose value was read has happened, at the revision that was read with it."""
    written = Counter(each.value for each in operations if each.verb in (Verb.CREATE, Verb.UPDATE))
    read = {each.value: each.revision for each in operations if each.verb is Verb.GET and _has_revision(each)}

    def learned(each: Operation) -> Operation:
        if each.outcome is Outcome.UNKNOWN and each.verb in (Verb.CREATE, Verb.UPDATE):
            revision = read.get(each.value)
            if revision is not None and written[each.value] == 1:
                return replace(each, outcome=Outcome.OK, revision=revision)
        return each

    return [learned(each) for each in operations]


# -- whole histories ---------------------------------------------------------------------------------


def check_object(operations: Sequence[Operation], *, key: str = "", rule: Rule = any_write) -> Violation | None:
    """The violation in the history of one object, which is absent at the start."""
    search = _Search(operations, rule)
    decided = search.run()
    if decided:
        return None
    words = "undecided" if decided is None else "not linearizable"
    return Violation(key, f"{words}: {search.explanation()}")


def check_history(
    history: Mapping[str, Sequence[Operation]], rules: Mapping[str, Rule] | None = None
) -> list[Violation]:
    """The violations in a history, by object. `rules` has the rules of some objects."""
    chosen = rules or {}
    found = [check_object(each, key=key, rule=chosen.get(key, any_write)) for key, each in history.items()]
    every = [each for operations in history.values() for each in operations]
    return [each for each in found if each is not None] + check_revisions(every)


def check_revisions(operations: Iterable[Operation]) -> list[Violation]:
    """Acknowledged writes of all objects: each has a revision of its own, above all that were known when it began."""
    every = [each for each in operations if _has_revision(each)]
    violations: list[Violation] = []
    writers = defaultdict(list)
    for each in every:
        if each.writes:
            writers[each.revision].append(each)
    for revision, shared in writers.items():
        if len(shared) > 1:
            violations.append(Violation("", f"{len(shared)} writes have revision {revision}: {shared}"))
    returned = sorted(every, key=lambda each: each.returned_s)
    place, known = 0, 0
    for each in sorted((one for one in every if one.writes), key=lambda one: one.invoked_s):
        while place < len(returned) and returned[place].returned_s < each.invoked_s:
            known = max(known, returned[place].revision)
            place += 1
        if each.revision <= known:
            violations.append(Violation("", f"revision {known} was known before this write began: {each}"))
    return violations
