"""Authentication: client certificates and bearer tokens in, callers out; and callers that act as others.

`server.service.access` decides which requests a caller may make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from kedge.api.access import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    Attributes,
    Caller,
    account_groups,
    account_of_user,
    refusal,
)
from kedge.api.requests import Get
from kedge.api.tokens import parse_token_secret, token_id, token_key
from kedge.api.wellknown import AUTHENTICATION_GROUP
from kedge.caches import weighed
from kedge.env import Env
from kedge.errors import BadRequest, Forbidden, NotFound, Unauthorized
from kedge.server.http.exchange import HttpRequest
from kedge.server.service import Service
from kedge.server.service.access.authorizer import Authorizer
from kedge.server.service.access.write_checks import impersonation, impersonation_of_user
from kedge.server.service.account_tokens import ISSUER

OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/healthz", b"/version"})
"""Paths that need no identity."""
Subject = tuple[tuple[tuple[str, str], ...], ...]
"""The subject of a certificate, as `ssl` describes it."""


class Authenticator:
    """Recognises callers by their certificates, which TLS has checked, and by their tokens."""

    def caller(self, request: HttpRequest) -> Caller | None:
        """The caller behind a request; None if it shows no certificate and must have a token."""
        peer = request.peer
        if peer is None:
            return None
        if peer.caller is None:
            peer.caller = _of_certificate(peer.facts)
        return peer.caller

    async def token_caller(self, request: HttpRequest, service: Service, env: Env) -> Caller:
        """The caller behind a bearer token. It is read from the store each time: a deleted token ends at once.

        Raises:
            Unauthorized: the request has no token, or one that is not known or has expired.
        """
        header = request.headers.get(b"authorization", b"")
        if not header.lower().startswith(b"bearer "):
            raise Unauthorized(
                "authentication is required: send a client certificate of this cluster, or a bearer token"
            )
        token = header[7:].strip().decode("latin-1")
        return await caller_of_token(token, service, env)


async def caller_of_token(token: str, service: Service, env: Env, audiences: Sequence[str] = ()) -> Caller:
    """The caller behind a token: of a ServiceAccount, or of `kedge token create`, which is for this server alone.

    Raises:
        Unauthorized: the token is not known, has expired, or is for others.
    """
    if token.count(".") == 2:
        found = await service.identify(token, audiences)
        return Caller(found.user, (*found.groups, AUTHENTICATED), found.uid, tuple(found.extra.items()))
    found_id = token_id(token)
    if found_id is not None and (not audiences or ISSUER in audiences):
        with suppress(NotFound):
            secret = await service.send(Get(token_key(found_id)))
            stored = parse_token_secret(secret.edit())
            if stored is not None and stored.matches(token):
                if stored.expires is not None and stored.expires <= env.now():
                    raise Unauthorized("the token has expired: get a new one with `kedge token create`")
                return Caller(stored.user, (*stored.groups, AUTHENTICATED))
    raise Unauthorized("the token is not known here: get a new one, or use a client certificate")


IMPERSONATION: Final = b"impersonate-"
"""The beginning of the headers by which a caller acts as another user."""
_USER, _GROUP, _UID, _EXTRA = (IMPERSONATION + name for name in (b"user", b"group", b"uid", b"extra-"))


def acting_caller(caller: Caller, headers: Mapping[bytes, bytes], access: Authorizer) -> Caller:
    """The caller itself, or the user that it impersonates (`kubectl --as`).

    Raises:
        BadRequest: groups or a uid are impersonated without a user, or a header is not UTF-8.
        Forbidden: the caller may not impersonate the user, a group, the uid or an extra.
    """
    user = headers.get(_USER)
    if user is None:
        if _GROUP in headers or _UID in headers:
            raise BadRequest("Impersonate-Group and Impersonate-Uid need Impersonate-User: send it too")
        return caller
    name = _text(user)
    groups = _values(headers.get(_GROUP, b""))
    uid = _text(headers.get(_UID, b""))
    extra = tuple(
        (unquote(_text(header.removeprefix(_EXTRA))), value)
        for header, sent in headers.items()
        if header.startswith(_EXTRA)
        for value in _values(sent)
    )
    for wanted in _impersonated(name, groups, uid, extra):
        if not access.check_nowait(caller, wanted):
            raise Forbidden(refusal(caller, wanted))
    account = account_of_user(name)
    if not groups and account is not None:
        groups = account_groups(account[0])
    added = UNAUTHENTICATED if name == ANONYMOUS else AUTHENTICATED
    return Caller(name, groups if added in groups else (*groups, added), uid, extra)


def _impersonated(user: str, groups: Sequence[str], uid: str, extra: Sequence[tuple[str, str]]) -> Iterator[Attributes]:
    """The requests that the caller must be allowed, so that it may act as this user."""
    yield impersonation_of_user(user)
    for group in groups:
        yield impersonation("groups", group)
    if uid:
        yield impersonation("uids", uid, group=AUTHENTICATION_GROUP)
    for name, value in extra:
        yield impersonation("userextras", value, group=AUTHENTICATION_GROUP, subresource=name)


def _text(value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError as error:
        raise BadRequest("a header that begins with Impersonate- is not UTF-8") from error


def _values(header: bytes) -> tuple[str, ...]:
    """A header that stands several times is joined by commas."""
    return tuple(each.strip() for each in _text(header).split(",") if each.strip())


def _of_certificate(peer: Mapping[str, Any]) -> Caller:
    return _of_subject(peer.get("subject", ()))


@weighed(entries=1024, bytes_max=4 << 20)
def _of_subject(subject: Subject) -> Caller:
    """Every request of a connection has the same subject."""
    names = [pair for part in subject for pair in part]
    user = next((value for name, value in names if name == "commonName"), "")
    groups = tuple(value for name, value in names if name == "organizationName")
    if not user:
        raise Unauthorized("the client certificate has no common name, which is the user: get another one")
    return Caller(user, (*groups, AUTHENTICATED))
