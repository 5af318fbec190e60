"""The audit of HTTP requests: the facts that an exchange collects about its request, for the entry at its end.

An exchange has one only if its request may be logged. The handler, `resources` and the exchange itself fill it in;
`server.audit` makes the entry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kedge.api import http_headers
from kedge.api.access import ANONYMOUS, UNAUTHENTICATED, Attributes, Caller
from kedge.api.http_batch import BATCH_PATH
from kedge.api.requests import Request
from kedge.env import Env
from kedge.errors import BadRequest, OperatingError
from kedge.server.audit import AuditedCall, Auditor
from kedge.server.http import parameters
from kedge.server.http.access import OPEN_PATHS
from kedge.server.http.routes import attributes_of, resource_path

if TYPE_CHECKING:
    from kedge.server.http.exchange import Exchange, HttpRequest

_BATCH_PATH: Final = BATCH_PATH.encode()
_HEALTH: Final = (b"/readyz/", b"/livez/", b"/healthz/")
_URI_BYTES_MAX: Final = 2048
_AGENT_BYTES_MAX: Final = 256
_ANONYMOUS: Final = Caller(ANONYMOUS, (UNAUTHENTICATED,))
_READS: Final = frozenset({"GET", "HEAD"})
_STREAMS: Final = frozenset({"log", "exec", "attach", "portforward"})
_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS: Final = {"GET": "list", "HEAD": "list", "DELETE": "deletecollection"}


def begin_audit(auditor: Auditor, request: HttpRequest, exchange: Exchange, env: Env) -> None:
    """Give an exchange its audit, if its request may be logged. A batch has none: each of its calls has its own."""
    if request.method in _READS and not auditor.reads:
        return
    path = request.path
    if path == _BATCH_PATH or path in OPEN_PATHS or path.startswith(_HEALTH):
        return
    exchange.audit = RequestAudit(auditor, request, env, exchange.connection.address, exchange.begun_s)


class RequestAudit:
    """The known facts about one request."""

    __slots__ = ("_auditor", "_call", "_long", "_request")

    def __init__(self, auditor: Auditor, request: HttpRequest, env: Env, address: str, began_s: float) -> None:
        self._auditor = auditor
        self._request = request
        wanted, version, path = _wanted(request)
        self._long = wanted.verb == "watch" or wanted.subresource in _STREAMS
        headers = request.headers
        uri = request.path + b"?" + request.query if request.query else request.path
        self._call = AuditedCall(
            received=env.now(),
            began_s=began_s,
            audit_id=env.new_uid(),
            user=_ANONYMOUS,
            wanted=wanted,
            api_version=version,
            path=path,
            request_uri=uri[:_URI_BYTES_MAX].decode("latin-1"),
            source_ips=(address,) if address else (),
            user_agent=headers.get(b"user-agent", b"")[:_AGENT_BYTES_MAX].decode("latin-1"),
            decision=headers.get(http_headers.DECISION, b"").decode("latin-1"),
            operation=headers.get(http_headers.OPERATION, b"").decode("latin-1"),
            body=request.body,
        )

    def authenticated(self, shown: Caller) -> None:
        """The user is known. Its rights are not."""
        self._call.user = shown

    def acts_as(self, caller: Caller) -> None:
        """The request is about to be carried out.

        Raises:
            Unavailable: it is a write, and the log cannot take its entry.
        """
        if caller is not self._call.user:
            self._call.acting = caller
        if self._request.method not in _READS:
            self._auditor.check_room(self._call)

    def sent(self, request: Request[Any], reply: Any) -> None:
        """A request reached the service. The last write counts; without one, the first read."""
        call = self._call
        if call.sent is None or not request.reads:
            call.sent, call.reply = request, reply

    def through(self, send: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """`send`, with a note of each request and its reply."""

        async def noted(request: Request[Any]) -> Any:
            self.sent(request, None)
            reply = await send(request)
            self.sent(request, reply)
            return reply

        return noted

    def failed(self, error: OperatingError) -> None:
        self._call.error = error

    def answered(self, code: int) -> None:
        self._call.code = code

    def started(self, code: int) -> None:
        """The reply has begun, and goes on."""
        self._call.code = code
        if self._long:
            self._auditor.started(self._call)

    def finish(self) -> None:
        """The request has ended: make its entry."""
        self._auditor.completed(self._call)


def _wanted(request: HttpRequest) -> tuple[Attributes, str, str]:
    """The attributes of a request, the version of its resource, and its path if it is for no resource."""
    method = request.method
    try:
        found = resource_path(request.path)
    except BadRequest:
        found = None
    if found is None:
        verb = "get" if method == "HEAD" else method.lower()
        return Attributes(verb, "", "", "", "", ""), "", request.path.decode("latin-1")
    if found.subresource in _STREAMS:
        verb = "get" if found.subresource == "log" else "create"
    elif found.name:
        verb = _VERBS.get(method, method.lower())
    else:
        verb = _COLLECTION_VERBS.get(method) or _VERBS.get(method, method.lower())
        if verb == "list" and request.query:
            with suppress(BadRequest):
                verb = "watch" if parameters.flag(parameters.parse_query(request.query), "watch") else verb
    return attributes_of(found, verb), found.version, ""
