"""The decision record: every input and every request of one reconcile, in order, so that it can be run again.

`runtime.context` writes it, `runtime.recheck` runs it again, `readers` explain it. It is plain data: an object in it is
the version that was read.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from kedge.api.objects import Object
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.records.attempt import SchedulingAttempt

if TYPE_CHECKING:
    Objects = tuple[Object, ...]
else:
    Objects = tuple[Any, ...]  # in bytes, the numbers of their versions: `codec` replaces them


class CacheMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one cache was."""

    cache: str
    place: int
    """In its received log."""
    revision: Revision
    age_s: float


class CacheRead(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="read"):
    """An answer of a cache: of one that is watched, and so may be old."""

    cache: str
    verb: str
    """`get`, `list` or `index`."""
    about: tuple[str, ...]
    """Of a get the namespace and name, of a list the namespace and selector, of an index its name and the value."""
    place: int
    revision: Revision
    age_s: float
    found: int
    """Of a get the revision found, 0 for an absence; of the others how many objects."""
    objects: Objects = ()
    """The answer itself, where the record must stand without its received log."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="call"):
    """A request to the authority and what came back."""

    verb: str
    key: Key | None
    """None where the server draws the name."""
    intent: Any
    """What was asked for: a body, a patch, options."""
    check: str
    """What had to hold for it to be carried out."""
    operation: str
    began_s: float
    """Since the decision began."""
    took_s: float
    outcome: str
    """`done`, `unchanged`, `removed`, `read`, `absent`, `cancelled`, or the name of an error."""
    revision: Revision = NO_REVISION
    """What it left or found."""
    error: dict[str, Any] | None = None
    """The error as a `Status`."""
    reply: Objects = ()
    marks: tuple[CacheMark, ...] = ()
    """The caches when it came back: other things ran meanwhile."""


class Clock(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="now"):
    """The time it was told."""

    now: datetime


class Budget(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="budget"):
    """A staleness budget that a cache was held to, and whether it kept it."""

    cache: str
    age_s: float
    budget_s: float
    kept: bool
    declared: bool = False
    """By the controller, for every decision: it was checked before the reconcile began."""


class Measured(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="measured"):
    """What the process itself had observed, and keeps nowhere else: told once, and told again from here."""

    what: str
    value: Any
    """As JSON."""


class NotStarted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="not started"):
    """What kept the reconcile from beginning: its caches did not show what it had written."""

    error: str


DecisionStep: TypeAlias = CacheRead | Call | Clock | Budget | Measured | NotStarted


class Decision(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """One reconcile of one key."""

    id: str
    """Every version it wrote carries it."""
    controller: str
    process: str
    """Which run of which process: its received logs are meant."""
    key: Key
    tenant: str
    priority: int
    uid: str = ""
    generation: int = 0
    """Of the object as it was first read; 0 if it was not there."""
    fence: Revision = NO_REVISION
    """The token it wrote with; 0 for a controller that needs no lease."""
    wakes: tuple[tuple[str, str], ...] = ()
    """What woke it and who had written that, oldest first."""
    wakes_dropped: int = 0
    attempt: int = 1
    place: int = 0
    """Its place in the order of dequeueing."""
    delayed_s: float = 0.0
    """How long it was held back on purpose: the retry's delay."""
    waited_s: float = 0.0
    """How long it stood ready before a worker took it."""
    began: datetime
    took_s: float = 0.0
    marks: tuple[CacheMark, ...] = ()
    """The caches when it began."""
    steps: list[DecisionStep] = []
    seed: int | None = None
    """Of its randomness; None if it drew nothing."""
    result: str = ""
    """`await change`, `requeue`, `terminal`, `failed`, or `cancelled`."""
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""
    error: str = ""
    kept: str = ""
    """Why it was kept in full; empty if it was only counted."""
    scheduling: SchedulingAttempt | None = None
    """Of a scheduling attempt alone."""
    objects_dropped: int = 0
    """How many of the objects it read are missing here, because with them it was too large for the log."""

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def reads(self) -> list[CacheRead]:
        return [step for step in self.steps if isinstance(step, CacheRead)]
