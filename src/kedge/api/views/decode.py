"""From stored bytes to a typed, frozen view."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from kedge.api.codec import parse_object
from kedge.api.views.base import ObjectMeta, View
from kedge.api.views.schema import dec_hook, decoder_of, examine
from kedge.errors import Invalid, check

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

_V = TypeVar("_V", bound=View)


def decode_view(kind: Kind, value: bytes) -> View:
    """The view of one stored object. Decode once per revision and share it."""
    check(kind.view is not None, f"{kind.key_kind} has no view: parse the object instead")
    assert kind.view is not None
    return decode_as(kind.view, value)


def decode_as(view: type[_V], value: bytes) -> _V:
    """As `decode_view`, when the view's type is known.

    Raises:
        Invalid: the bytes never passed validation; `errors` names each bad field.
        BadRequest: they are not a JSON object.
    """
    try:
        decoded: _V = decoder_of(view).decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _decode_slowly(view, value)
    return decoded


def decode_metadata(value: bytes) -> ObjectMeta:
    """The metadata alone: cheaper than the view, and available for kinds without a view."""
    return decode_as(View, value).metadata


def _decode_slowly(view: type[_V], value: bytes) -> _V:
    """Decode an object that has nulls where the view has defaults, or raise `Invalid`."""
    findings = examine(view, parse_object(value))
    if findings.errors:
        listed = ", ".join(map(str, findings.errors))
        raise Invalid(f"{view.__name__} cannot be decoded from this object: [{listed}]", errors=findings.errors)
    decoded: _V = msgspec.convert(findings.cleaned, view, dec_hook=dec_hook)
    return decoded
