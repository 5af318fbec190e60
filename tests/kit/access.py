"""A service with its authorizer at work and the default roles stored, and requests as any caller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.api_server import exchange
from tests.objects import NAMESPACE, World, make_world

from kedge.api.access import AUTHENTICATED, MASTERS, NODES, Attributes, Caller
from kedge.api.requests import WriteOptions
from kedge.api.wellknown import SYSTEM_NAMESPACES
from kedge.keys import Origin
from kedge.server.http.access import Authenticator
from kedge.server.http.api import ApiHandler
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.server import ApiServer
from kedge.server.service import Service

RBAC = "rbac.authorization.k8s.io/v1"
ADMIN = Caller("admin", (MASTERS, AUTHENTICATED))
ADA = Caller("ada", (AUTHENTICATED,))


async def guarded_world(**means: Any) -> World:
    """A world whose writes must not give rights away."""
    world = await make_world(**means)
    await add_defaults(world.service)
    await world.service.start_access()
    return world


async def add_defaults(service: Service) -> None:
    """The namespaces and roles of a new cluster."""
    for name in SYSTEM_NAMESPACES:
        await service.create(NAMESPACE, {"metadata": {"name": name}})
    await service.ensure_default_roles()


class NamedAuthenticator(Authenticator):
    """Believes the header `Authorization: Named USER,GROUP,...`: for tests of what comes after authentication."""

    def caller(self, request: HttpRequest) -> Caller | None:
        scheme, _, names = request.headers.get(b"authorization", b"").decode().partition(" ")
        if scheme != "Named":
            return None
        user, *groups = names.split(",")
        return Caller(user, (*groups, AUTHENTICATED))


class GuardedApi:
    """A server over loopback sockets with the default roles, for requests as any caller."""

    def __init__(self, service: Service, port: int, handler: ApiHandler) -> None:
        self.service = service
        self.port = port
        self.handler = handler

    async def send(
        self, caller: Caller | None, method: str, path: str, body: Any = None, *headers: str, address: str = ""
    ) -> tuple[int, Any]:
        """The code and the decoded body of one reply; `address` is the one that the request comes from."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(data)}"]
        lines.append(f"Content-Type: {'application/merge-patch+json' if method == 'PATCH' else 'application/json'}")
        if caller is not None:
            lines.append(f"Authorization: Named {','.join([caller.user, *caller.recorded_groups])}")
        reply = await exchange(
            self.port, "\r\n".join([*lines, *headers, "", ""]).encode() + data, end=False, address=address
        )
        head, _, rest = reply.partition(b"\r\n\r\n")
        try:
            return int(head.split()[1]), json.loads(rest)
        except json.JSONDecodeError:
            return int(head.split()[1]), rest


@asynccontextmanager
async def guarded_api(**means: Any) -> AsyncIterator[GuardedApi]:
    world = await make_world(**means)
    await add_defaults(world.service)
    server = ApiServer(world.service, world.env, authenticator=NamedAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    try:
        yield GuardedApi(world.service, port, server.handler)
    finally:
        await server.stop()
        await world.store.close()


def agent_of(node: str) -> Caller:
    return Caller(f"system:node:{node}", (NODES, AUTHENTICATED))


def account(name: str, namespace: str = "default") -> Caller:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return Caller(f"system:serviceaccount:{namespace}:{name}", groups)


def written_by(caller: Caller) -> WriteOptions:
    """Options of a write by this caller, as the HTTP server makes them."""
    origin = Origin(caller=caller.user, groups=caller.recorded_groups)
    return WriteOptions(caller=caller.user, origin=origin)


def wants(verb: str, resource: str, namespace: str = "", name: str = "", *, group: str = "") -> Attributes:
    """`pods/log` is a resource with its subresource."""
    resource, _, subresource = resource.partition("/")
    return Attributes(verb, group, resource, subresource, namespace, name)


def rule(verbs: str, resources: str, group: str = "", **more: Sequence[str]) -> dict[str, Any]:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), **more}


def role(name: str, *rules: dict[str, Any], namespace: str = "", **fields: Any) -> dict[str, Any]:
    """A ClusterRole; with a namespace, a Role."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": RBAC, "kind": kind, "metadata": metadata, "rules": list(rules), **fields}


def binding(name: str, of: str, *subjects: str, namespace: str = "") -> dict[str, Any]:
    """A ClusterRoleBinding; with a namespace, a RoleBinding. `of` is `Role/NAME` or `ClusterRole/NAME`; a subject is
    `User/NAME`, `Group/NAME` or `ServiceAccount/NAMESPACE/NAME`."""
    kind, _, role_name = of.partition("/")
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": RBAC,
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "subjects": [_subject(each) for each in subjects],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_name},
    }


def _subject(text: str) -> dict[str, Any]:
    kind, _, name = text.partition("/")
    if kind == "ServiceAccount":
        namespace, _, name = name.partition("/")
        return {"kind": kind, "namespace": namespace, "name": name}
    return {"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name}
