"""`Status` bodies: how every refusal looks on the wire."""

from __future__ import annotations

import contextlib

import msgspec

from kedge.api.kinds import Registry
from kedge.errors import Invalid, NotFound, OperatingError, to_status

_encode = msgspec.json.Encoder().encode


def status_body(code: int, reason: str, message: str) -> bytes:
    """A failure that no error type stands for, such as a request that cannot be parsed."""
    return _encode({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    })  # fmt: skip


def error_body(error: OperatingError, kinds: Registry) -> tuple[int, bytes]:
    """The HTTP code and the body for an operating error.

    `details.kind` is the plural, as in Kubernetes, except in an `Invalid`, where it is the kind.
    """
    status = to_status(error)
    status.setdefault("details", {})  # kubectl debug reads it without a check
    if error.key is not None and not isinstance(error, Invalid):
        with contextlib.suppress(NotFound):  # a kind that is not served has no plural
            status["details"]["kind"] = kinds.of_key_kind(error.key.kind).plural
    return int(status["code"]), _encode(status)
