"""Bodies of a type, made at random, with and without fields that the type does not have."""

from __future__ import annotations

from random import Random
from typing import Any

from kedge.api.types import FieldShape, TypeFacts, type_table

TABLE = type_table()
SCALARS: tuple[Any, ...] = ("text", 1, True, None, [], {}, ["a"], {"free": "form"})


def body_of(facts: TypeFacts, rng: Random, depth: int, *, strange: float) -> dict[str, Any]:
    """A body with some fields of a type, and now and then one that it does not have, or a value of the wrong shape."""
    found: dict[str, Any] = {}
    for name, field in facts.json.items():
        if rng.random() < 0.6:
            continue
        child = TABLE.child(field)
        if child is None or depth == 0 or rng.random() < strange:
            found[name] = rng.choice(SCALARS)
            continue
        parts = [body_of(child, rng, depth - 1, strange=strange) for _ in range(rng.randrange(3))]
        if field.shape is FieldShape.LIST:
            found[name] = parts
        elif field.shape is FieldShape.MAP:
            found[name] = {f"key{number}": part for number, part in enumerate(parts)}
        else:
            found[name] = parts[0] if parts else {}
    if rng.random() < strange:
        found["strange"] = rng.choice(SCALARS)
    return found
