"""The decision record: everything one reconcile was told, asked, drew and did, in order, so that it can be run again.

`runtime.context` writes it, `runtime.recheck` runs it again, and every view of the past reads it. It is plain data: an
object in it is the very version that was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from kedge.api.kinds import KINDS, Registry
from kedge.api.objects import Object
from kedge.errors import check
from kedge.keys import NO_REVISION, Key, Origin, Revision


class CacheMark(msgspec.Struct, frozen=True, gc=False):
    """How far one cache was."""

    cache: str
    place: int
    """In its received log."""
    revision: Revision
    age_s: float


class CacheRead(msgspec.Struct, frozen=True, gc=False, tag="read"):
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
    objects: tuple[Object, ...] = ()
    """The answer itself, where the record must stand without its received log."""


class Call(msgspec.Struct, frozen=True, gc=False, tag="call"):
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
    reply: tuple[Object, ...] = ()
    marks: tuple[CacheMark, ...] = ()
    """The caches when it came back: other things ran meanwhile."""


class Clock(msgspec.Struct, frozen=True, gc=False, tag="now"):
    """The time it was told."""

    now: datetime


class Budget(msgspec.Struct, frozen=True, gc=False, tag="budget"):
    """A staleness budget that a cache was held to, and whether it kept it."""

    cache: str
    age_s: float
    budget_s: float
    kept: bool
    declared: bool = False
    """By the controller, for every decision: it was checked before the reconcile began."""


class Measured(msgspec.Struct, frozen=True, gc=False, tag="measured"):
    """What the process itself had observed, and keeps nowhere else: told once, and told again from here."""

    what: str
    value: Any
    """As JSON."""


class Gate(msgspec.Struct, frozen=True, gc=False, tag="gate"):
    """What kept the reconcile from beginning: its caches did not show what it had written."""

    error: str


Step: TypeAlias = CacheRead | Call | Clock | Budget | Measured | Gate


class Decision(msgspec.Struct, kw_only=True, gc=False):
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
    steps: list[Step] = []
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
    details: dict[str, Any] = {}
    """What else its maker says of it: of a scheduling attempt, every node accounted for."""
    objects_dropped: int = 0
    """How many of the objects it read are missing here, because with them it was too large for the log."""

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def reads(self) -> list[CacheRead]:
        return [step for step in self.steps if isinstance(step, CacheRead)]


# -- as bytes --------------------------------------------------------------------------------------


def without_objects(decision: Decision) -> tuple[Decision, list[tuple[Object, ...]]]:
    """The record without the objects it was shown, and those, step by step. It is left as it was."""
    steps: list[Step] = []
    shown: list[tuple[Object, ...]] = []
    for step in decision.steps:
        objects: tuple[Object, ...] = ()
        if type(step) is CacheRead:
            if objects := step.objects:
                step = replace(step, objects=())
        elif type(step) is Call and (objects := step.reply):
            step = replace(step, reply=())
        steps.append(step)
        shown.append(objects)
    return replace(decision, steps=steps), shown


def with_objects(decision: Decision, shown: Iterable[tuple[Object, ...]]) -> Decision:
    """Undo `without_objects`."""
    steps: list[Step] = []
    for step, objects in zip(decision.steps, shown, strict=True):
        if objects:
            check(isinstance(step, CacheRead | Call), "only reads and calls are shown objects")
            step = replace(step, objects=objects) if isinstance(step, CacheRead) else replace(step, reply=objects)
        steps.append(step)
    return replace(decision, steps=steps)


class Version(NamedTuple):
    """An object as plain data: what is left of it when its kind is looked up again."""

    key: Key
    revision: Revision
    created: Revision
    origin: Origin
    value: bytes

    @classmethod
    def of(cls, found: Object) -> Version:
        return cls(found.key, found.revision, found.created, found.origin, found.value)

    def object(self, kinds: Registry) -> Object:
        """Raises `NotFound` if `kinds` does not have its kind."""
        kind = kinds.of_key_kind(self.key.kind)
        return Object(kind, self.key, self.value, revision=self.revision, created=self.created, origin=self.origin)


def encode_plain(value: Any) -> Any:
    """For msgspec: an intent may hold mappings that are no dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_plain)
_decoder = msgspec.msgpack.Decoder(tuple[Decision, list[list[Version]]])


def encode_decision(decision: Decision) -> bytes:
    """One record with its objects. A log of many writes each version once instead: `observe.segments`."""
    bare, shown = without_objects(decision)
    return _encoder.encode((bare, [[Version.of(each) for each in objects] for objects in shown]))


def decode_decision(data: bytes, *, kinds: Registry = KINDS) -> Decision:
    """Read what `encode_decision` wrote."""
    bare, shown = _decoder.decode(data)
    return with_objects(bare, [tuple([each.object(kinds) for each in objects]) for objects in shown])
