"""The one tree of errors. Each docstring has the caller's next step.

An operating error occurs in correct programs and maps to and from a Kubernetes `Status`; a `Bug` is a fault in kedge.
Adapters wrap foreign exceptions in such errors and keep the cause. Nothing here retries: `client.contract.retry` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from kedge.keys import NO_REVISION, Key, Revision
from kedge.limits import ERROR_FIELD_CHARS_MAX, ERROR_FIELDS_MAX, ERROR_TEXT_CHARS_MAX


def shortened(text: str, chars_max: int = ERROR_TEXT_CHARS_MAX) -> str:
    """A text as an error may carry it: valid Unicode, and without its middle if it is long.

    Errors repeat parts of a request. Their beginning names what is wrong and their end has the next step.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()  # escapes lone surrogates
    if len(text) <= chars_max:
        return text
    kept = chars_max // 2 - 32
    return f"{text[:kept]} ... {len(text) - 2 * kept} characters left out ... {text[-kept:]}"


class KedgeError(Exception):
    """Base of every error that kedge raises on purpose."""


class OperatingError(KedgeError):
    """A rejection or failure that a correct program must handle. Has a Kubernetes `Status`."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    cause: ClassVar[str] = ""
    """Distinguishes errors that share a Kubernetes reason; empty where the reason is enough."""

    def __init__(self, message: str, *, key: Key | None = None) -> None:
        message = shortened(message)
        super().__init__(message)
        self.message = message
        self.key = key
        self.from_server = False
        """Whether it came in a `Status`: the message is for any client, and has no next step of this one."""
        self.written: Sequence[Any] = ()
        """Writes that a `deletecollection` had committed before this error ended it: the audit log lists them."""


class NotFound(OperatingError):
    """The object does not exist. Treat it as deleted; create it only if you own it."""

    code, reason = 404, "NotFound"


class AlreadyExists(OperatingError):
    """An object with this name exists. Read it: it may be your own earlier attempt."""

    code, reason = 409, "AlreadyExists"


class Conflict(OperatingError):
    """A check failed and nothing was written. Read `key` again and decide again."""

    code, reason = 409, "Conflict"

    def __init__(self, message: str, *, key: Key | None = None, revision: Revision = NO_REVISION) -> None:
        super().__init__(message, key=key)
        self.revision = revision
        """The revision `key` was found at; `NO_REVISION` if it does not exist."""


class Compacted(OperatingError):
    """The requested history is gone. List again and watch from there; never skip the gap."""

    code, reason = 410, "Expired"

    def __init__(self, message: str, *, oldest: Revision = NO_REVISION) -> None:
        super().__init__(message)
        self.oldest = oldest
        """The oldest revision that can still be read, and watched after."""
        self.continue_token = ""
        """For a list in pages: a token for the rest of the list as it is now; changes before that place are missed."""


class Lagged(OperatingError):
    """A watcher fell too far behind and was disconnected. Resume after the last revision it returned."""

    code, reason, cause = 429, "TooManyRequests", "Lagged"


class BadRequest(OperatingError):
    """The request is malformed. Correct it; repeating it cannot help."""

    code, reason = 400, "BadRequest"


class MethodNotAllowed(OperatingError):
    """This kind has no such verb or subresource. Use one that it has."""

    code, reason = 405, "MethodNotAllowed"


class TooLarge(OperatingError):
    """The object or commit is over a size limit. Split it; repeating it cannot help."""

    code, reason = 413, "RequestEntityTooLarge"


class NotAcceptable(OperatingError):
    """The caller accepts no form that this server has. Accept `application/json`."""

    code, reason = 406, "NotAcceptable"


class UnsupportedMediaType(OperatingError):
    """The body is of a type that is not read here. Send it as a type that the message lists."""

    code, reason = 415, "UnsupportedMediaType"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One bad field, with its Kubernetes cause type (`FieldValueInvalid` and its siblings)."""

    path: str
    type: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", shortened(self.path, ERROR_FIELD_CHARS_MAX))
        object.__setattr__(self, "message", shortened(self.message, ERROR_FIELD_CHARS_MAX))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(OperatingError):
    """The object breaks its kind's rules; `errors` names every bad field. Correct them all, then send it again."""

    code, reason = 422, "Invalid"

    def __init__(self, message: str, *, key: Key | None = None, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(message, key=key)
        self.errors = tuple(errors[:ERROR_FIELDS_MAX])
        """The bad fields, or the first of them if they are too many."""


class Forbidden(OperatingError):
    """Policy, quota or lifecycle forbids this to the caller or object. Change that first; a retry alone cannot help."""

    code, reason = 403, "Forbidden"


class Unauthorized(OperatingError):
    """The caller is not known. Authenticate again."""

    code, reason = 401, "Unauthorized"


class TooManyRequests(OperatingError):
    """Load is being shed, or a disruption budget is spent. Wait `retry_after_s`, then try again."""

    code, reason = 429, "TooManyRequests"

    def __init__(self, message: str, *, key: Key | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, key=key)
        self.retry_after_s = retry_after_s


class Unavailable(OperatingError):
    """The request was not carried out: a dependency cannot be reached. Back off, then try again."""

    code, reason = 503, "ServiceUnavailable"


class Misconfigured(OperatingError):
    """The server cannot use its store as it is set up; nothing was written. Correct the setting that it names."""

    code, reason, cause = 500, "InternalError", "Misconfigured"


class FutureRevision(Unavailable):
    """The store did not reach the requested revision in time. List again if it came from another store."""

    code, reason, cause = 504, "Timeout", "FutureRevision"


class HeldOff(Unavailable):
    """Nothing was sent: the client's own breaker is open. `Breaker.held_s` is how long; the server may be well."""

    cause = "HeldOff"


class Fenced(OperatingError):
    """A write of a former leader: the lease behind the fence has a new holder. Stop acting as its holder."""

    code, reason, cause = 409, "Conflict", "Fenced"

    def __init__(self, message: str, *, key: Key | None = None, revision: Revision = NO_REVISION) -> None:
        super().__init__(message, key=key)
        self.revision = revision
        """The fence's revision now: the new holder's token."""


class Refused(OperatingError):
    """The claim no longer fits. Wait until your cache has `key` at `revision`, then decide again."""

    code, reason, cause = 409, "Conflict", "Refused"

    def __init__(self, message: str, *, refusal: str, key: Key, revision: Revision) -> None:
        super().__init__(message, key=key)
        self.refusal = refusal
        """A reason code of `placement.reasons`."""
        self.revision = revision


class OutcomeUnknown(OperatingError):
    """The write may or may not have been made. Read before anything else; it is neither failure nor success."""

    code, reason = 504, "Timeout"


class Terminal(OperatingError):
    """This intent can never succeed as it is. Stop retrying and report it in a condition."""

    code, reason, cause = 500, "InternalError", "Terminal"


class StoreDamaged(Terminal):
    """The file of a store is damaged; nothing of it is served. Restore a backup, or salvage what is sound."""

    cause = "StoreDamaged"


class Bug(KedgeError):
    """A fault in kedge itself. Do not retry: stop, keep the evidence, report it."""


class InvariantBroken(Bug):
    """An invariant does not hold. Stop: the state that broke it is the evidence."""


class ReplayDiverged(Bug):
    """A run or a decision, repeated from its record, had another result. Find the input that the record lacks."""


def check(condition: object, why: str) -> None:
    """Assert an invariant, in production too."""
    if not condition:
        raise InvariantBroken(why)


def unreachable(value: object) -> NoReturn:
    """End an exhaustive `match`."""
    raise InvariantBroken(f"no case for {value!r}")


# -- Kubernetes Status -----------------------------------------------------------------------------

_CAUSE_PREFIX = "kedge.dev/"
_CLASSES: tuple[type[OperatingError], ...] = (
    NotFound, Conflict, AlreadyExists, Compacted, Lagged, BadRequest, MethodNotAllowed, NotAcceptable, TooLarge,
    UnsupportedMediaType, Invalid, FutureRevision,
    Forbidden, Unauthorized, TooManyRequests, Unavailable, HeldOff, Fenced, Refused, OutcomeUnknown, Terminal,
    Misconfigured, StoreDamaged,
)  # fmt: skip
_BY_CAUSE = {cls.cause: cls for cls in _CLASSES if cls.cause}
_BY_REASON = {cls.reason: cls for cls in reversed(_CLASSES) if not cls.cause}
# The first class listed for a code is used for a status that has nothing but the code.
_BY_CODE = {cls.code: cls for cls in reversed(_CLASSES) if not cls.cause}


def to_status(error: OperatingError) -> dict[str, Any]:
    """The `v1` `Status` a Kubernetes client expects for `error`."""
    details: dict[str, Any] = {}
    if error.key is not None:
        kind, _, group = error.key.kind.partition(".")
        details = {
            "name": shortened(error.key.name, ERROR_FIELD_CHARS_MAX),
            "group": shortened(group, ERROR_FIELD_CHARS_MAX),
            "kind": shortened(kind, ERROR_FIELD_CHARS_MAX),
        }
        if error.key.namespace:
            details["namespace"] = shortened(error.key.namespace, ERROR_FIELD_CHARS_MAX)
    causes: list[dict[str, str]] = []
    match error:
        case Invalid():
            causes = [{"reason": e.type, "message": e.message, "field": e.path} for e in error.errors]
        case Refused():
            causes = [
                _extra("Refused", error.refusal),
                _extra("Revision", str(error.revision)),
            ]
        case Fenced():
            causes = [_extra("Fenced", str(error.revision))]
        case Conflict():
            causes = [_extra("Revision", str(error.revision))]
        case Compacted():
            causes = [_extra("Oldest", str(error.oldest))]
        case TooManyRequests():
            details["retryAfterSeconds"] = max(1, round(error.retry_after_s))
            causes = [_extra("RetryAfter", repr(error.retry_after_s))]
        case FutureRevision():
            details["retryAfterSeconds"] = 1
            # client-go recognises it by this cause, and lists again.
            causes = [
                _extra(error.cause, ""),
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"},
            ]
        case _ if error.cause:
            causes = [_extra(error.cause, "")]
    if causes:
        details["causes"] = causes
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.code,
    }
    if details:
        status["details"] = details
    if isinstance(error, Compacted) and error.continue_token:
        status["metadata"] = {"continue": error.continue_token}
    return status


def from_status(status: Mapping[str, Any]) -> OperatingError:
    """The error of a `Status`. A status that kedge did not write is matched by its reason, then by its code."""
    error = _error_in(status)
    error.from_server = True
    return error


def _error_in(status: Mapping[str, Any]) -> OperatingError:
    details = _mapping(status.get("details"))
    message = str(status.get("message") or "no message")
    causes = [_mapping(cause) for cause in details.get("causes") or ()]
    extras = {
        str(cause.get("reason"))[len(_CAUSE_PREFIX) :]: str(cause.get("message") or "")
        for cause in causes
        if str(cause.get("reason")).startswith(_CAUSE_PREFIX)
    }
    code = status.get("code")
    by_cause = next((_BY_CAUSE[name] for name in extras if name in _BY_CAUSE), None)
    cls = by_cause or _BY_REASON.get(str(status.get("reason"))) or _BY_CODE.get(code if isinstance(code, int) else 0)
    key = _key_in(details)
    revision = _integer(extras.get("Revision") or extras.get("Fenced"))
    if cls is Invalid:
        fields = tuple(
            FieldError(str(c.get("field", "")), str(c.get("reason", "")), str(c.get("message", ""))) for c in causes
        )
        return Invalid(message, key=key, errors=fields)
    if cls is Refused and key is not None:
        return Refused(message, refusal=extras["Refused"], key=key, revision=revision)
    if cls in (Conflict, Refused):
        return Conflict(message, key=key, revision=revision)
    if cls is Fenced:
        return Fenced(message, key=key, revision=revision)
    if cls is Compacted:
        compacted = Compacted(message, oldest=_integer(extras.get("Oldest")))
        compacted.continue_token = str(_mapping(status.get("metadata")).get("continue") or "")
        return compacted
    if cls is TooManyRequests:
        return TooManyRequests(message, key=key, retry_after_s=_retry_after_s(extras, details))
    return (cls or OperatingError)(message, key=key)


def _extra(name: str, message: str) -> dict[str, str]:
    return {"reason": _CAUSE_PREFIX + name, "message": message}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _integer(text: str | None) -> int:
    return int(text) if text and text.isdigit() else NO_REVISION


def _retry_after_s(extras: Mapping[str, str], details: Mapping[str, Any]) -> float:
    try:
        return float(extras.get("RetryAfter") or details.get("retryAfterSeconds") or 1.0)
    except (TypeError, ValueError):
        return 1.0


def _key_in(details: Mapping[str, Any]) -> Key | None:
    if not details.get("name"):
        return None
    kind = ".".join(part for part in (details.get("kind"), details.get("group")) if part)
    return Key(kind, str(details.get("namespace") or ""), str(details["name"]))
