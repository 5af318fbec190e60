"""Validation of arbitrary input: garbage raises no other error, and the fast path equals the plain path."""

from __future__ import annotations

import contextlib
import copy
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.checks import check, kind_of, mutated, places, replaced
from tests.unit.api.json_values import values
from tests.unit.api.manifests import manifest, manifests

from kedge.api.codec import encode_json, encode_object, parse_object
from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS, Kind
from kedge.api.validation import _check_whole, check_object, check_update
from kedge.api.views import View, decode_view
from kedge.api.views.schema import decoder_of, examine, strict_twin
from kedge.errors import BadRequest, Invalid

# -- the short cut for replicas --------------------------------------------------------------------


def test_replicas_share_a_spec_that_is_checked_once() -> None:
    one, other = manifest("Pod"), manifest("Pod")
    other["metadata"]["name"] = "web-1"
    assert check(one).view.spec is check(other).view.spec  # type: ignore[attr-defined]
    other["metadata"]["name"] = "No"
    other["status"]["phase"] = "Napping"
    with pytest.raises(Invalid) as caught:
        check(other)
    assert [error.path for error in caught.value.errors] == ["metadata.name", "status.phase"]


@given(st.lists(st.tuples(st.sampled_from(places(manifest("Pod"))[1:]), values), max_size=2))
def test_the_fast_path_equals_the_plain_path(changes: list[tuple[Any, Any]]) -> None:
    kind, body = KINDS.resolve("po"), encode_json(mutated("Pod", changes))

    def outcome(check_one: Any) -> Any:
        try:
            return check_one(kind, body)
        except (Invalid, BadRequest) as error:
            return type(error), error.message

    assert outcome(check_object) == outcome(_check_whole)


# -- garbage ---------------------------------------------------------------------------------------


kinds = [each["kind"] for each in manifests()]
mutants = st.sampled_from(kinds).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(st.tuples(st.sampled_from(places(manifest(kind))[1:]), values), min_size=1, max_size=3),
    )
)


@settings(max_examples=300)
@given(mutants)
def test_a_mutated_manifest_is_accepted_or_rejected(mutant: tuple[str, Any]) -> None:
    kind = kind_of(manifest(mutant[0]))
    plain = mutated(*mutant)
    defaulted = mutated(*mutant)
    apply_defaults(kind, defaulted)
    for body in (encode_json(plain), encode_json(defaulted)):
        refused = outcome = None
        try:
            outcome = check_object(kind, body)
        except (BadRequest, Invalid) as error:
            refused = error
        if isinstance(refused, Invalid):
            assert refused.errors
            assert all(e.path and e.type.startswith("FieldValue") and e.message for e in refused.errors)
        if outcome is not None and kind.view is not None:
            assert decode_view(kind, body) == outcome.view


NASTY: list[Any] = [None, True, 2**70, Decimal("1E+400"), "-", [None], {}, {"": {}}]


@pytest.mark.parametrize("kind_name", kinds)
def test_a_bad_value_at_any_path_is_accepted_or_rejected(kind_name: str) -> None:
    clean = manifest(kind_name)
    kind = kind_of(clean)
    for at in places(clean)[1:]:
        if at[0] in ("apiVersion", "kind") or at == ("metadata",):
            continue  # the service checks these before validation
        if at[:3] == ("spec", "template", "spec") and len(at) > 3:
            continue  # as in a pod
        for value in NASTY:
            obj = replaced(clean, at, copy.deepcopy(value))
            body = encode_object(obj)
            with contextlib.suppress(Invalid, BadRequest):
                check_object(kind, body)
            with contextlib.suppress(Invalid):
                check_update(kind, clean, parse_object(body))
            with contextlib.suppress(Invalid):
                check_update(kind, parse_object(body), clean)
            apply_defaults(kind, copy.deepcopy(obj))


@given(st.sampled_from(list(KINDS)), st.binary(max_size=40) | values.map(encode_json))
def test_no_bytes_raise_another_error(kind: Kind, body: bytes) -> None:
    with pytest.raises((Invalid, BadRequest)):
        check_object(kind, body)


def test_a_deeply_nested_object_is_rejected() -> None:
    deep = b'{"metadata":{"name":"a"},"spec":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}"
    for kind in KINDS:
        with pytest.raises((BadRequest, Invalid)):
            check_object(kind, deep)


# -- the strict twin and the walk ------------------------------------------------------------------


@given(
    st.sampled_from(kinds),
    st.lists(st.tuples(st.integers(0, 10**6), st.text("abXY", min_size=1, max_size=5)), max_size=2),
)
def test_the_strict_twin_rejects_exactly_the_objects_with_unknown_fields(
    name_of_kind: str, additions: list[tuple[int, str]]
) -> None:
    obj = manifest(name_of_kind)
    shape = kind_of(obj).view or View
    for at, name in additions:
        maps = [place for place in places(obj) if isinstance(dig(obj, place), dict)]
        dig(obj, maps[at % len(maps)])[name] = "x"
    findings = examine(shape, parse_object(encode_json(obj)))
    if findings.errors:
        return  # the twin checks names alone, not types
    try:
        decoder_of(strict_twin(shape)).decode(encode_json(obj))
    except msgspec.ValidationError:
        assert findings.unknown
    else:
        assert not findings.unknown


def dig(value: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        value = value[step]
    return value
