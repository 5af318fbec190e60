"""Authentication and authorization: client certificates and bearer tokens in, allowed or refused out.

Roles are fixed: administrators may do everything, each component what its role lists, every other caller nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, NamedTuple

from kedge.errors import BadRequest, Forbidden, Unauthorized
from kedge.server.http.connection import HttpRequest

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/healthz", b"/version"})
"""Paths that need no identity."""

_READ = frozenset({"get", "list", "watch"})
_EVERY = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})


class Caller(NamedTuple):
    """An authenticated user."""

    user: str
    groups: tuple[str, ...]


class Attributes(NamedTuple):
    """One request, as authorization sees it."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


class Authenticator:
    """Recognises callers. Tokens are known by their SHA-256 alone."""

    def __init__(self, tokens: Mapping[str, Caller] | None = None) -> None:
        """`tokens` maps the hexadecimal SHA-256 of each token to its caller."""
        self._tokens = dict(tokens or {})

    def caller(self, request: HttpRequest) -> Caller:
        """The caller behind a request.

        Raises:
            Unauthorized: it shows no certificate of this cluster and no token that is known.
        """
        if request.peer is not None:
            return _of_certificate(request.peer)
        header = request.headers.get(b"authorization", b"")
        if header.lower().startswith(b"bearer "):
            digest = hashlib.sha256(header[7:].strip()).hexdigest()
            for known, caller in self._tokens.items():
                if hmac.compare_digest(known, digest):
                    return caller
            raise Unauthorized("the token is not known here: get a new one, or use a client certificate")
        raise Unauthorized("authentication is required: send a client certificate of this cluster, or a bearer token")


def acting_caller(caller: Caller, headers: Mapping[bytes, bytes]) -> Caller:
    """The caller itself, or the user that an administrator impersonates (`kubectl --as`).

    Raises:
        BadRequest: groups are impersonated without a user.
        Forbidden: the caller is no administrator.
    """
    user = headers.get(b"impersonate-user")
    groups = headers.get(b"impersonate-group", b"")
    if user is None:
        if groups:
            raise BadRequest("Impersonate-Group needs Impersonate-User: send both")
        return caller
    name = user.decode("latin-1")
    if MASTERS not in caller.groups:
        raise Forbidden(
            f'users "{name}" is forbidden: User "{caller.user}" cannot impersonate resource "users" in API group ""'
            " at the cluster scope"
        )
    named = tuple(each.strip() for each in groups.decode("latin-1").split(",") if each.strip())
    return Caller(name, (*named, AUTHENTICATED))


def _of_certificate(peer: Mapping[str, Any]) -> Caller:
    names = [pair for part in peer.get("subject", ()) for pair in part]
    user = next((value for name, value in names if name == "commonName"), "")
    groups = tuple(value for name, value in names if name == "organizationName")
    if not user:
        raise Unauthorized("the client certificate has no common name, which is the user: get another one")
    return Caller(user, (*groups, AUTHENTICATED))


class Role(NamedTuple):
    """Resources that a component may touch, by verb. `*` stands for every resource, subresources included."""

    verbs: frozenset[str]
    resources: frozenset[str]


ROLES: dict[str, tuple[Role, ...]] = {
    "kedge:schedulers": (
        Role(_READ, frozenset({"*"})),
        Role(_EVERY, frozenset({"leases", "events", "reservations", "reservations/status"})),
        Role(frozenset({"create"}), frozenset({"pods/binding", "pods/eviction"})),
        Role(frozenset({"update", "patch"}), frozenset({"pods/status", "schedulingpolicies/status"})),
        Role(frozenset({"delete"}), frozenset({"pods"})),
    ),
    "kedge:controllers": (Role(_EVERY, frozenset({"*"})),),
    "kedge:agents": (
        Role(_READ, frozenset({"pods", "nodes", "services", "endpointslices", "configmaps", "secrets", "namespaces"})),
        Role(_EVERY, frozenset({"leases", "events"})),
        Role(frozenset({"create", "update", "patch"}), frozenset({"nodes", "nodes/status", "pods/status"})),
        Role(frozenset({"delete"}), frozenset({"pods"})),
        Role(frozenset({"update"}), frozenset({"nodeallocations"})),
    ),
}
"""Roles by group."""


def allows(caller: Caller, wanted: Attributes) -> bool:
    """Whether the caller may do this."""
    if MASTERS in caller.groups:
        return True
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    return any(
        wanted.verb in role.verbs and ("*" in role.resources or resource in role.resources)
        for group in caller.groups
        for role in ROLES.get(group, ())
    )


def check_allowed(caller: Caller, wanted: Attributes) -> None:
    """Raises `Forbidden` with the message of Kubernetes."""
    if allows(caller, wanted):
        return
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    where = f' in the namespace "{wanted.namespace}"' if wanted.namespace else " at the cluster scope"
    name = f'{resource} "{wanted.name}" is forbidden: ' if wanted.name else f"{resource} is forbidden: "
    raise Forbidden(
        f'{name}User "{caller.user}" cannot {wanted.verb} resource "{resource}" in API group "{wanted.group}"{where}'
    )
