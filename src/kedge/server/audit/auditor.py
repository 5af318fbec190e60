"""Entries of the audit log, from requests and their replies: each at the level of the policy, without secrets.

`server.http` and the direct transport pass their requests to it. It decides the content of an entry; `log` keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from kedge.api.access import AUTHENTICATED, Attributes, Caller
from kedge.api.audit import AuditFacts, as_deleted, audit_facts, deleted_objects
from kedge.api.kinds import Registry
from kedge.api.objects import Object
from kedge.api.requests import OpenWatch, Request, Written
from kedge.api.wellknown import (
    AUDIT_API_VERSION,
    AUDIT_BODY,
    AUDIT_LATENCY,
    AUDIT_OBJECTS,
    AUDIT_OBJECTS_LEFT_OUT,
    AUDIT_OPERATION,
    AUDIT_OUTCOME,
    AUDIT_REVISION,
    AUDIT_REVISION_BEFORE,
    AUTHORIZATION_DECISION,
    CONFIG_MAP_KIND,
    DECISION_ANNOTATION,
    EVENT_KIND,
    SECRET_KIND,
)
from kedge.env import Env
from kedge.errors import BadRequest, Forbidden, OperatingError, Unauthorized, Unavailable, to_status
from kedge.server.audit.events import NO_BODY, AuditedObject, AuditEvent, ResponseStatus, encode_event, user_of
from kedge.server.audit.log import AuditLog
from kedge.server.audit.policy import (
    COMPLETE,
    READ_VERBS,
    STARTED,
    AuditAnswer,
    AuditLevel,
    AuditPolicy,
    AuditRead,
    may_hold_secrets,
)

_SECRET_KINDS: Final = frozenset(
    {SECRET_KIND, "SecretList", CONFIG_MAP_KIND, "ConfigMapList", "TokenReview", "TokenRequest", "List"}
)
_encode: Final = msgspec.json.Encoder().encode
_OK, _CREATED = 200, 201
_REFUSED: Final = 400
"""Codes from here on are of requests that were not done."""


@dataclass(slots=True, kw_only=True)
class AuditedCall:
    """One request on its way. Transports fill it in; `Auditor.completed` makes the entry."""

    received: datetime
    began_s: float
    audit_id: str
    user: Caller
    acting: Caller | None = None
    """The user that `user` impersonates; None if it acts for itself."""
    wanted: Attributes
    api_version: str = ""
    path: str = ""
    """Empty unless the request is for no resource."""
    request_uri: str = ""
    source_ips: tuple[str, ...] = ()
    user_agent: str = ""
    decision: str = ""
    operation: str = ""
    sent: Request[Any] | None = None
    """The request that reached the service; None if it was refused before that."""
    reply: Any = None
    error: OperatingError | None = None
    code: int = 0
    """The code of the reply; 0 if the client was gone before it."""
    body: bytes = b""
    """The body as it was received."""


class Auditor:
    """Writes the entries of one server."""

    def __init__(self, policy: AuditPolicy, log: AuditLog, env: Env, *, strict: bool = False) -> None:
        """With `strict`, writes that the policy logs are refused while the log cannot take them."""
        self._policy = policy
        self._log = log
        self._env = env
        self._strict = strict
        self.reads = policy.reads
        """Whether a read may be logged: transports skip those that are not."""
        metrics = env.metrics
        self._refused = metrics.counter(
            "kedge_audit_refused_total", "Writes refused because the audit log could not take their entries"
        )
        self._left_out = metrics.counter(
            "kedge_audit_bodies_left_out_total", "Bodies that entries of the audit log lack because of their size"
        )

    def check_room(self, call: AuditedCall) -> None:
        """Refuse a write whose entry might be lost.

        Raises:
            Unavailable: auditing is strict, and the log is behind or fails. Try again later.
        """
        if self._strict and not self._log.accepts and self._answer(call).level:
            self._refused.inc()
            raise Unavailable("the audit log cannot be written, and no write is done without it: try again later")

    def started(self, call: AuditedCall) -> None:
        """A long request, such as a watch, has begun its reply."""
        answer = self._answer(call)
        if answer.level and answer.starts:
            self._append(call, answer, STARTED)

    def completed(self, call: AuditedCall) -> None:
        """A request has ended."""
        answer = self._answer(call)
        if answer.level:
            self._append(call, answer, COMPLETE)

    def _answer(self, call: AuditedCall) -> AuditAnswer:
        return self._policy.answer(AuditRead(call.user.user, call.user.groups, call.wanted, call.path))

    # -- calls in this process ---------------------------------------------------------------------

    def may_log(self, request: Request[Any]) -> bool:
        """Whether a call may have an entry. The request for a token writes no object, and is no read here."""
        return self.reads or request.verb not in READ_VERBS

    def direct_call(self, request: Request[Any], caller: Caller, kinds: Registry) -> AuditedCall:
        """The call of a component in this process, which is about to be carried out."""
        target, origin = request.target, request.options.origin
        kind = kinds.of_key_kind(target.kind)
        verb, part = request.verb, request.subresource
        env = self._env
        return AuditedCall(
            received=env.now(),
            began_s=env.monotonic(),
            audit_id=env.new_uid(),
            user=caller,
            acting=Caller(acting, (AUTHENTICATED,)) if (acting := request.options.acting_as) else None,
            wanted=Attributes(verb, kind.group, kind.plural, part, target.namespace, target.name),
            api_version=kind.version,
            decision=origin.decision,
            operation=origin.operation,
            sent=request,
        )

    # -- entries -----------------------------------------------------------------------------------

    def _append(self, call: AuditedCall, answer: AuditAnswer, stage: str) -> None:
        facts = self._facts(call)
        annotations = self._annotations(call, facts)
        bodies = (NO_BODY, NO_BODY)
        if answer.level >= AuditLevel.REQUEST and stage == COMPLETE:
            bodies = self._bodies(call, answer, annotations)
        env, wanted = self._env, call.wanted
        code = call.code if call.error is None else int(to_status(call.error)["code"])
        event = AuditEvent(
            kind=EVENT_KIND,
            api_version=AUDIT_API_VERSION,
            level=answer.level.text,
            audit_id=call.audit_id,
            stage=stage,
            request_uri=call.request_uri,
            verb=wanted.verb,
            user=user_of(call.user),
            impersonated_user=user_of(call.acting) if call.acting is not None else None,
            source_ips=call.source_ips,
            user_agent=call.user_agent,
            object_ref=None if call.path else _reference(call, facts),
            response_status=ResponseStatus(code, _reason(call.error), _message(call)) if code else None,
            request_object=bodies[0],
            response_object=bodies[1],
            received=call.received,
            at=env.now(),
            annotations=annotations,
        )
        self._log.append(encode_event(event))

    def _facts(self, call: AuditedCall) -> AuditFacts | None:
        if call.sent is None or isinstance(call.sent, OpenWatch):
            return None
        try:
            return audit_facts(call.sent, call.reply, call.error)
        except BadRequest:
            return None  # a create whose body is no object has no target

    def _annotations(self, call: AuditedCall, facts: AuditFacts | None) -> dict[str, str]:
        found = {AUDIT_LATENCY: f"{self._env.monotonic() - call.began_s:.6f}"}
        found[AUDIT_OUTCOME] = _outcome(call)
        if not isinstance(call.error, Unauthorized):
            refused = isinstance(call.error, Forbidden) and call.sent is None
            found[AUTHORIZATION_DECISION] = "forbid" if refused else "allow"
        if call.decision:
            found[DECISION_ANNOTATION] = call.decision
        if call.operation:
            found[AUDIT_OPERATION] = call.operation
        if facts is not None and facts.revision_before:
            found[AUDIT_REVISION_BEFORE] = str(facts.revision_before)
        if facts is not None and facts.revision:
            found[AUDIT_REVISION] = str(facts.revision)
        if facts is not None and facts.objects:
            found |= self._deleted(call)
        return found

    def _deleted(self, call: AuditedCall) -> dict[str, str]:
        """The objects of a `deletecollection`, whose reply is a list and so has no name and no version of its own."""
        assert call.sent is not None  # only the facts of a request count objects
        written = deleted_objects(call.sent, call.reply, call.error)
        most = self._env.limits.audit_objects_max
        found = {AUDIT_OBJECTS: _encode([as_deleted(each) for each in written[:most]]).decode()}
        if len(written) > most:
            found[AUDIT_OBJECTS_LEFT_OUT] = str(len(written) - most)
        return found

    # -- bodies ------------------------------------------------------------------------------------

    def _bodies(
        self, call: AuditedCall, answer: AuditAnswer, annotations: dict[str, str]
    ) -> tuple[msgspec.Raw, msgspec.Raw]:
        """The bodies of the request and, at that level, of the reply. An annotation has the reason of a missing one."""
        if call.path:
            return NO_BODY, NO_BODY
        # The service's request has JSON also where the client sent protobuf.
        sent = self._body(getattr(call.sent, "body", None) or call.body, answer, annotations)
        found = call.reply.object if isinstance(call.reply, Written) else call.reply
        if answer.level < AuditLevel.REQUEST_RESPONSE or not isinstance(found, Object):
            return sent, NO_BODY
        return sent, self._body(found.json(), answer, annotations)

    def _body(self, body: Any, answer: AuditAnswer, annotations: dict[str, str]) -> msgspec.Raw:
        if not body:
            return NO_BODY
        limit = self._env.limits.audit_body_bytes_max
        try:
            encoded = body if isinstance(body, bytes) else _encode(body)
            if len(encoded) > limit:
                self._left_out.inc()
                annotations[AUDIT_BODY] = f"left out: larger than {limit} bytes"
                return NO_BODY
            value = msgspec.json.decode(encoded)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            annotations[AUDIT_BODY] = "left out: not JSON"
            return NO_BODY
        if isinstance(value, dict):
            if value.get("kind") in _SECRET_KINDS:
                annotations[AUDIT_BODY] = "left out: it may hold secrets"
                return NO_BODY
            if not answer.managed_fields and isinstance(value.get("metadata"), dict):
                value["metadata"].pop("managedFields", None)
        return msgspec.Raw(_encode(value))  # on one line, whatever its form was


def done_code(request: Request[Any]) -> int:
    """The code of a request in this process that was done, as its HTTP reply would have it."""
    return _CREATED if request.verb == "create" else _OK


def _outcome(call: AuditedCall) -> str:
    """`done`, the name of an error, or `cut off` if the client was gone before its reply."""
    if call.error is not None:
        return type(call.error).__name__
    if not call.code:
        return "cut off"
    return "done" if call.code < _REFUSED else "failed"


def _reference(call: AuditedCall, facts: AuditFacts | None) -> AuditedObject:
    wanted = call.wanted
    found = call.reply.object if isinstance(call.reply, Written) else call.reply
    key = facts.key if facts is not None else None
    return AuditedObject(
        resource=wanted.resource,
        namespace=(key.namespace if key is not None else "") or wanted.namespace,
        name=(key.name if key is not None else "") or wanted.name,
        uid=found.uid if isinstance(found, Object) else "",
        api_group=wanted.group,
        api_version=call.api_version,
        subresource=wanted.subresource,
    )


def _reason(error: OperatingError | None) -> str:
    return "" if error is None else str(to_status(error).get("reason", ""))


def _message(call: AuditedCall) -> str:
    """The sentence of an error, unless it may quote a secret."""
    if call.error is None or isinstance(call.error, BadRequest) or may_hold_secrets(call.wanted):
        return ""
    return str(call.error)
