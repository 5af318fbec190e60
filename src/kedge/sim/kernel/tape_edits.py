"""Mutations of a tape: a choice changed, a tail drawn again, two tapes spliced, a fault moved or repeated.

An edited tape is replayed leniently: choices are matched by label and occurrence, and missing ones are drawn from its
`tail_seed`, or are 0. The run records a whole tape of its own, which replays exactly. `coverage_search` uses this.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from kedge.sim.kernel.choices import STREAMS, Tape, TapePosition, pack, unpack

EDITS_MAX = 3
"""Edits of one mutation."""
RETURN_SHARE = 0.5
"""Mutations that only draw again what came after something new."""
PLAIN_TAIL_SHARE = 0.5
"""Other mutations whose missing choices are 0: fewer faults."""

_Edit: TypeAlias = Callable[[Random, Tape, Tape], None]


def mutate(tape: Tape, position: TapePosition, other: Tape, source: Random) -> Tape:
    """An edited copy of `tape`. Equal sources give equal edits.

    Half of the mutations go back to `position`, at which the tape reached something new, and draw the rest again: a bug
    that needs one thing more is often near. A splice takes its second part from `other`.
    """
    edited = tape.copy()
    edited.tail_seed = source.getrandbits(32)
    if source.random() < RETURN_SHARE:
        edited.cut(position)
        return edited
    if source.random() < PLAIN_TAIL_SHARE:
        edited.tail_seed = None
    for _ in range(source.randint(1, EDITS_MAX)):
        source.choice(_EDITS)(source, edited, other)
    return edited


def change_choice(source: Random, tape: Tape, other: Tape) -> None:  # noqa: ARG001
    """Draw the value of one choice again."""
    name = source.choice([name for name in STREAMS if tape.streams[name]] or STREAMS[:1])
    choices = tape.streams[name]
    if choices:
        place = source.randrange(len(choices))
        label, bound, _ = choices[place]
        choices[place] = (label, bound, source.randrange(bound))


def change_schedule(source: Random, tape: Tape, other: Tape) -> None:  # noqa: ARG001
    """Another host runs at one step."""
    if tape.schedule:
        place = source.randrange(len(tape.schedule))
        bound, _ = unpack(tape.schedule[place])
        tape.schedule[place] = pack(bound, source.randrange(bound))


def draw_tail(source: Random, tape: Tape, other: Tape) -> None:  # noqa: ARG001
    """Draw the tail of every stream again, from the same share of its length on."""
    share = source.random()
    network, faults, workload = (int(share * len(tape.streams[name])) for name in STREAMS)
    tape.cut((int(share * len(tape.schedule)), network, faults, workload))
    tape.tail_seed = source.getrandbits(32)


def splice(source: Random, tape: Tape, other: Tape) -> None:
    """The first part of a stream, and then the second part of the other tape's."""
    name, share = source.choice(STREAMS), source.random()
    ours, theirs = tape.streams[name], other.streams[name]
    ours[int(share * len(ours)) :] = theirs[int(share * len(theirs)) :]


def repeat_fault(source: Random, tape: Tape, other: Tape) -> None:  # noqa: ARG001
    """A fault that struck strikes at another message of its point too."""
    _copy_fault(source, tape)


def move_fault(source: Random, tape: Tape, other: Tape) -> None:  # noqa: ARG001
    """A fault that struck strikes at another message of its point instead."""
    place = _copy_fault(source, tape)
    if place is not None:
        label, bound, _ = tape.streams["faults"][place]
        tape.streams["faults"][place] = (label, bound, 0)


def _copy_fault(source: Random, tape: Tape) -> int | None:
    """Copy a strike to a place without one. Returns the place of the strike; None if there is no such pair."""
    choices, strikes = tape.streams["faults"], tape.strikes()
    if not strikes:
        return None
    place = source.choice(strikes)
    label, bound, value = choices[place]
    point = _point(label)
    others = [
        there
        for there, (its_label, its_bound, its_value) in enumerate(choices)
        if not its_value and its_bound == bound and _point(its_label) == point
    ]
    if not others:
        return None
    there = source.choice(others)
    choices[there] = (choices[there][0], bound, value)
    return place


def _point(label: str) -> str:
    """The fault point in the label of a choice, without the hosts it is about."""
    return label.rpartition(" ")[0]


_EDITS: tuple[_Edit, ...] = (change_choice, change_schedule, draw_tail, splice, repeat_fault, move_fault)
"""Equally likely."""
