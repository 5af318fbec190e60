"""The next step after an error of a server: its message is for every client, and names none of our commands. Pure.

Errors that the command line raises itself have their next step already.
"""

from __future__ import annotations

import re

from kedge.errors import (
    AlreadyExists,
    BadRequest,
    Compacted,
    Conflict,
    Fenced,
    Invalid,
    KedgeError,
    Lagged,
    MethodNotAllowed,
    NotFound,
    OperatingError,
    OutcomeUnknown,
    Refused,
    TooLarge,
    TooManyRequests,
    Unavailable,
)

_MISSING = re.compile(r'(?P<plural>[a-z0-9-]+)(?:\.[a-z0-9.-]+)? "[^"]*" not found')
_WAITING = re.compile(r'container "[^"]*" in pod "(?P<pod>[^"]*)" is waiting to start\b.*', re.DOTALL)
_STEPS: tuple[tuple[tuple[type[OperatingError], ...], str], ...] = (
    ((NotFound,), "check the type and the name"),
    ((AlreadyExists,), "use another name, or change the one that exists with `kedge apply`"),
    ((Conflict, Fenced, Refused, Compacted), "it changed in between: run the command again"),
    ((Invalid, BadRequest, TooLarge), "correct that, then run the command again"),
    ((TooManyRequests, Lagged, Unavailable), "run the command again in a moment"),
    ((OutcomeUnknown,), "look at the object: it may have been carried out"),
    ((MethodNotAllowed,), "use another verb for this type"),
)


def with_next_step(error: KedgeError) -> str:
    """The message of an error, with a next step if a server sent it without one."""
    if not isinstance(error, OperatingError) or not error.from_server:
        return str(error)
    return f"{error}: {_step(error)}"


def _step(error: OperatingError) -> str:
    found = _MISSING.fullmatch(error.message) if isinstance(error, NotFound) else None
    if found is not None:
        namespace = error.key.namespace if error.key is not None else ""
        where = f" -n {namespace}" if namespace not in ("", "default") else ""
        return f"`kedge get {found['plural']}{where}` lists those there are"
    if waiting := _WAITING.fullmatch(error.message):
        return f"`kedge why {waiting['pod']}` explains it"
    for classes, step in _STEPS:
        if isinstance(error, classes):
            return step
    return "the log of the server has more"
