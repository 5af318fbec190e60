"""`Status` bodies: how every refusal looks on the wire."""

from __future__ import annotations

import msgspec

from kedge.errors import OperatingError, to_status

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


def error_body(error: OperatingError) -> tuple[int, bytes]:
    """The HTTP code and the body for an operating error."""
    status = to_status(error)
    return int(status["code"]), _encode(status)
