"""Decision records as bytes, with the objects they read: one record alone, or parts for a log of many.

`recording.segments` writes each object version once for many records. A record is never changed by encoding it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kedge.api.kinds import KINDS, Registry
from kedge.api.objects import Object
from kedge.errors import check
from kedge.keys import Key, Origin, Revision
from kedge.observe.records.decision import CacheRead, Call, Decision, DecisionStep


def without_objects(decision: Decision) -> tuple[Decision, list[tuple[Object, ...]]]:
    """The record without the objects it was shown, and those, step by step. It is left as it was."""
    steps: list[DecisionStep] = []
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
    steps: list[DecisionStep] = []
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
