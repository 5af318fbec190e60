"""Authentication and authorization: client certificates and bearer tokens in, allowed or refused out.

Roles are fixed: administrators may do everything, each component what its role lists, every other caller nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from kedge.api.requests import BoundObject, Get
from kedge.api.tokens import parse_token_secret, token_id, token_key
from kedge.api.wellknown import POD_KIND, SYSTEM_NAMESPACE
from kedge.env import Env
from kedge.errors import BadRequest, Forbidden, NotFound, Unauthorized
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.routes import ResourcePath
from kedge.server.service import Service
from kedge.server.service.account_tokens import ISSUER

MASTERS = "system:masters"
AGENTS = "kedge:agents"
AUTHENTICATED = "system:authenticated"
OPEN_PATHS = frozenset({b"/livez", b"/readyz", b"/healthz", b"/version"})
"""Paths that need no identity."""
DISCOVERY_PATHS = OPEN_PATHS | {b"/", b"/api", b"/api/*", b"/apis", b"/apis/*", b"/openapi", b"/openapi/*"}
"""Paths that every authenticated caller may read; `*` stands for any rest."""

_READ = frozenset({"get", "list", "watch"})
_EVERY = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})


Subject = tuple[tuple[tuple[str, str], ...], ...]
"""The subject of a certificate, as `ssl` describes it."""


class Caller(NamedTuple):
    """An authenticated user."""

    user: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    """More about the user of a ServiceAccount's token."""

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        """The groups to store beside a version: every authenticated user is in one more."""
        return tuple([each for each in self.groups if each != AUTHENTICATED])


class Attributes(NamedTuple):
    """One request, as authorization sees it."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


class Authenticator:
    """Recognises callers by their certificates, which TLS has checked, and by their tokens."""

    def caller(self, request: HttpRequest) -> Caller | None:
        """The caller behind a request; None if it shows no certificate and must have a token."""
        return None if request.peer is None else _of_certificate(request.peer)

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
    return _of_subject(peer.get("subject", ()))


@lru_cache(maxsize=1024)
def _of_subject(subject: Subject) -> Caller:
    """Every request of a connection has the same subject."""
    names = [pair for part in subject for pair in part]
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
    "kedge:metrics": (),  # a monitoring system: it reads paths such as /metrics, and no objects
    "kedge:schedulers": (
        Role(_READ, frozenset({"*"})),
        Role(_EVERY, frozenset({"leases", "events", "reservations", "reservations/status"})),
        Role(frozenset({"create"}), frozenset({"pods/binding", "pods/eviction"})),
        Role(frozenset({"update", "patch"}), frozenset({"pods/status", "schedulingpolicies/status"})),
        Role(frozenset({"delete"}), frozenset({"pods"})),
    ),
    "kedge:controllers": (Role(_EVERY, frozenset({"*"})),),
    AGENTS: (
        Role(_READ, frozenset({"pods", "nodes", "services", "endpointslices", "configmaps", "secrets", "namespaces"})),
        Role(_READ, frozenset({"serviceaccounts"})),
        Role(frozenset({"create"}), frozenset({"serviceaccounts/token"})),
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
    if wanted.resource == "secrets" and wanted.namespace in ("", SYSTEM_NAMESPACE) and wanted.verb not in _READ:
        return False  # tokens are Secrets there, and the writer of a token chooses its groups
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    return any(
        wanted.verb in role.verbs and ("*" in role.resources or resource in role.resources)
        for group in caller.groups
        for role in ROLES.get(group, ())
    )


DEBUG_PREFIX = b"/kedge/debug/"
"""Documents about the inside of the process: names of objects in every namespace, and texts of errors."""


def allows_path(caller: Caller, path: bytes) -> bool:
    """Whether the caller may read a path that is no resource.

    Only administrators and components see metrics, and only administrators see what is below `DEBUG_PREFIX`.
    """
    if path.startswith(DEBUG_PREFIX):
        return MASTERS in caller.groups
    if MASTERS in caller.groups or any(group in ROLES for group in caller.groups):
        return True
    return any(
        path == each or (each.endswith(b"*") and path.startswith(each.removesuffix(b"*"))) for each in DISCOVERY_PATHS
    )


def check_path_allowed(caller: Caller, path: bytes) -> None:
    """Raises `Forbidden` with the message of Kubernetes."""
    if not allows_path(caller, path):
        raise Forbidden(f'forbidden: User "{caller.user}" cannot get path "{path.decode("latin-1")}"')


def check_token_allowed(caller: Caller, path: ResourcePath, bound: BoundObject | None) -> None:
    """Raises `Forbidden` for a token that an agent requests for anything but a pod."""
    if AGENTS in caller.groups and MASTERS not in caller.groups and (bound is None or bound.kind != POD_KIND):
        raise Forbidden(
            f'serviceaccounts "{path.name}" is forbidden: an agent gets tokens for its pods alone: bind it to a Pod'
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
