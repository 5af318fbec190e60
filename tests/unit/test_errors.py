"""Errors to and from a Kubernetes `Status`."""

from __future__ import annotations

import pytest

from kedge import errors
from kedge.errors import FieldError, OperatingError, from_status, to_status
from kedge.keys import Key

KEY = Key("Deployment.apps", "default", "web")
EVERY = [
    errors.NotFound("gone", key=KEY),
    errors.AlreadyExists("there", key=KEY),
    errors.Conflict("moved", key=KEY, revision=41),
    errors.Compacted("old", oldest=7),
    errors.Lagged("slow"),
    errors.BadRequest("nonsense"),
    errors.MethodNotAllowed("no such verb", key=KEY),
    errors.NotAcceptable("no such form"),
    errors.UnsupportedMediaType("no such type"),
    errors.TooLarge("huge", key=KEY),
    errors.Invalid("bad", key=KEY, errors=[FieldError("spec.a", "FieldValueInvalid", "no"), FieldError("", "X", "y")]),
    errors.Forbidden("no", key=KEY),
    errors.Unauthorized("who"),
    errors.TooManyRequests("later", key=KEY, retry_after_s=2.5),
    errors.Unavailable("down"),
    errors.Misconfigured("no such user"),
    errors.StoreDamaged("a file is damaged"),
    errors.FutureRevision("not there yet"),
    errors.HeldOff("not now"),
    errors.Fenced("deposed", key=KEY, revision=12),
    errors.Refused("full", refusal="Resource", key=KEY, revision=99),
    errors.OutcomeUnknown("no reply", key=KEY),
    errors.Terminal("never", key=KEY),
]


def test_every_operating_error_is_covered() -> None:
    known = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, OperatingError)}
    assert {type(error) for error in EVERY} == known - {OperatingError}


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_a_status_keeps_every_field_of_its_error(error: OperatingError) -> None:
    status = to_status(error)
    assert (status["code"], status["reason"], status["message"]) == (error.code, error.reason, error.message)
    again = from_status(status)
    assert type(again) is type(error)
    assert again.from_server, "a reader can distinguish it from an error of its own"
    assert vars(again) == {**vars(error), "from_server": True}


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_every_error_documents_the_next_step(error: OperatingError) -> None:
    doc = type(error).__doc__
    assert doc is not None
    assert doc.count(".") >= 2 or ";" in doc or ":" in doc


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"code": 404}, errors.NotFound),
        ({"code": 409, "reason": "AlreadyExists"}, errors.AlreadyExists),
        ({"code": 409}, errors.Conflict),
        ({"code": 429, "details": {"retryAfterSeconds": "soon"}}, errors.TooManyRequests),
        ({"code": 429, "details": {"retryAfterSeconds": 3}}, errors.TooManyRequests),
        ({"code": 500, "reason": "InternalError"}, OperatingError),
        ({"code": 599}, OperatingError),
        ({}, OperatingError),
        ({"details": "not even an object"}, OperatingError),
        ({"code": 409, "details": {"causes": [{"reason": "kedge.dev/Refused"}]}}, errors.Conflict),
        ({"code": "409", "details": {"causes": ["x", None]}}, OperatingError),
    ],
)
def test_a_foreign_status_is_matched_by_reason_then_by_code(
    status: dict[str, object], expected: type[OperatingError]
) -> None:
    assert isinstance(from_status(status), expected)


def test_a_failed_check_is_a_bug() -> None:
    errors.check(1, "fine")
    with pytest.raises(errors.InvariantBroken, match="not fine"):
        errors.check(0, "not fine")
