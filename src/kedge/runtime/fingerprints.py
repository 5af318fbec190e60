"""Fingerprints of object content, by which the queue compares the inputs and writes of runs to find loops. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kedge.api.objects import Object

_COMPARED_MAX = 100
"""Objects of one read that are compared by content; a longer read is new whenever one revision in it changed."""
_GENERATION = b'"generation":'
_TIME = b'Time":"'


def input_fingerprints(objects: Sequence[Object]) -> Iterator[int]:
    """Fingerprints that change only with new input. A version that a controller wrote is new if its content is.

    1. Another controller reverts what this one wrote. 2. Each time the version is new. 3. The content is the same as
    the last time: counting it as new would count a conflict of two controllers as work. A version that no decision
    wrote comes from a person or an agent, and always counts as new.
    """
    if len(objects) > _COMPARED_MAX:
        return (each.revision for each in objects)
    return (content_fingerprint(each) if each.origin.decision else each.revision for each in objects)


def content_fingerprint(found: Object) -> int:
    """A hash of an object without its generation and without the times in it."""
    value = found.value
    generation = value.find(_GENERATION)
    if generation >= 0:
        start = generation + len(_GENERATION)
        value = value[:start] + value[start:].lstrip(b"0123456789")
    first, *rest = value.split(_TIME)
    return hash((found.key, first, *[part[part.find(b'"') :] for part in rest]))
