"""The matrix: every verb on every kind and subresource, as every sort of caller, against one readable file.

`python -m tests.unit.http.test_access_matrix` writes the file again; read the difference before you keep it. The file
has the answers of the authorizer; `test_access_routes` sends requests, so that no route forgets to ask it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.kit.access import ADMIN, account, agent_of, binding, guarded_world
from tests.objects import NODE, World, asynchronous, node, pod

from kedge.api.access import (
    ANONYMOUS,
    AUTHENTICATED,
    BOOTSTRAPPERS,
    CONTROLLERS,
    METRICS_READERS,
    SCHEDULERS,
    UNAUTHENTICATED,
    Caller,
    joining_group,
)
from kedge.api.kinds import KINDS
from kedge.api.requests import Binding
from kedge.api.wellknown import (
    AUTHENTICATION_GROUP,
    CERTIFICATES_GROUP,
    LEASES_GROUP,
    NODE_LEASE_NAMESPACE,
    POD_KIND,
    RBAC_GROUP,
    ROTATE_KEYS_PATH,
    SIGNING_REQUEST_KIND,
    SYSTEM_NAMESPACE,
)
from kedge.cli.controller_identities import controller_roles, controller_users
from kedge.server.http.pod_streams import SUBRESOURCES
from kedge.server.http.resources import OWN_SUBRESOURCES
from kedge.server.http.reviews import REVIEWS
from kedge.server.http.routes import ResourcePath, attributes_of
from kedge.server.http.usage_metrics import METRICS_KINDS
from kedge.server.http.versions import listed_versions
from kedge.server.service.access.role_table import JOINING
from kedge.server.service.credentials.signing_rules import RIGHTS, SIGNERS

FILE = Path(__file__).with_suffix(".txt")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READS = ("list", "watch")
CALLERS: dict[str, Caller] = {
    "anonymous": Caller(ANONYMOUS, (UNAUTHENTICATED,)),
    "user": Caller("plain", (AUTHENTICATED,)),
    "account": account("robot"),
    "viewer": Caller("viewer", (AUTHENTICATED,)),
    "editor": Caller("editor", (AUTHENTICATED,)),
    "tenant": Caller("tenant", (AUTHENTICATED,)),
    **{
        f"joining-{each}": Caller("system:bootstrap:abcdef", (BOOTSTRAPPERS, joining_group(each), AUTHENTICATED))
        for each in JOINING
    },
    "own-agent": agent_of("node-a"),
    "other-agent": agent_of("node-b"),
    "scheduler": Caller("scheduler", (SCHEDULERS, AUTHENTICATED)),
    "controllers": Caller("controllers", (CONTROLLERS, AUTHENTICATED)),
    "monitoring": Caller("prometheus", (METRICS_READERS, AUTHENTICATED)),
    "administrator": ADMIN,
}
"""The agent is that of node-a, where the only pod is; viewer, editor and tenant have their roles in `default`."""
PATHS = {
    "get": (
        "/", "/api", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/version", "/livez", "/metrics", "/kedge/backup",
        "/kedge/debug/queues", "/kedge/incidents", "/kedge/incidents/i/agent-a/0",
    ),
    "post": ("/kedge/incidents/i/agent-a", "/kedge/incidents/i/agent-a/0", ROTATE_KEYS_PATH),
    "delete": ("/kedge/incidents/i",),
}  # fmt: skip
HEAD = """\
# A resource, then a line for each answer: the verbs, and the callers that may use them on an object in the namespace
# `default` or at the cluster scope. `-` is none, `*` is all. The object is of node-a where there is such a one. `@own`
# marks lists and watches that an agent makes with the selector of its own node alone. `(in NAMESPACE)` is
# another namespace, `(VERB)` a verb that no request has of its own, `of` the objects that it is about. Every version of
# a group has the same rights. The users of controllers are at the end. Writes that would give rights away
# (roles, bindings, tokens, other nodes) fail in their commit: tests/unit/service/access has those.
"""
CONTROLLERS_HEAD = """
# The user of each controller, and what it may beyond a plain user: verbs, and resources after them.
"""
OBJECTS = {
    "pods": "web-0", "nodes": "node-a", "nodeallocations": "node-a", "leases": "node-a", "secrets": "key",
    "configmaps": "settings", "serviceaccounts": "default", "namespaces": "default",
}  # fmt: skip


class Row(NamedTuple):
    """A resource of the file."""

    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    verbs: tuple[str, ...] = VERBS
    names: tuple[str, ...] = ()
    """Other objects than that of `OBJECTS`. `@some` marks a verb that is allowed for some of them alone."""
    remark: str = ""

    @property
    def shown(self) -> str:
        dotted = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{dotted}/{self.subresource}" if self.subresource else dotted

    @property
    def title(self) -> str:
        return f"{self.shown} ({self.remark})" if self.remark else self.shown


def rows() -> list[Row]:
    """Everything that is served, each resource once, and the rights that no request of its own has."""
    found: dict[tuple[str, str, str], Row] = {}
    for kind in (*KINDS, *listed_versions(), *METRICS_KINDS):
        parts = {*kind.subresources, *OWN_SUBRESOURCES.get(kind.key_kind, ())}
        parts.update({POD_KIND: SUBRESOURCES, SIGNING_REQUEST_KIND: RIGHTS}.get(kind.kind, ()))
        for part in ("", *sorted(parts)):
            place = (kind.group, kind.plural, part)
            verbs = ("create",) if part in RIGHTS else VERBS
            found.setdefault(place, Row(*place, "default" if kind.namespaced else "", verbs))
    reviews = (Row(e.group, e.plural, "", "default" if e.namespaced else "", ("create",)) for e in REVIEWS)
    return [*found.values(), *reviews, *_leases(), *_special_verbs()]


def _leases() -> Iterator[Row]:
    yield Row(LEASES_GROUP, "leases", namespace=SYSTEM_NAMESPACE, remark=f"in {SYSTEM_NAMESPACE}")
    yield Row(LEASES_GROUP, "leases", namespace=NODE_LEASE_NAMESPACE, remark=f"in {NODE_LEASE_NAMESPACE}")


def _special_verbs() -> Iterator[Row]:
    for resource in ("users", "groups", "serviceaccounts"):
        namespace = "default" if resource == "serviceaccounts" else ""
        yield Row("", resource, "", namespace, ("impersonate",), remark="impersonate")
    for resource in ("uids", "userextras"):
        yield Row(AUTHENTICATION_GROUP, resource, "", "", ("impersonate",), remark="impersonate")
    users = tuple(controller_users().values())
    yield Row("", "users", "", "", ("impersonate",), users, "impersonate, of every controller")
    for resource, namespace in (("roles", "default"), ("clusterroles", "")):
        for verb in ("bind", "escalate"):
            yield Row(RBAC_GROUP, resource, "", namespace, (verb,), remark=verb)
    for verb in ("approve", "sign"):
        yield Row(CERTIFICATES_GROUP, "signers", "", "", (verb,), SIGNERS, f"{verb}, of every signer here")


async def answers(world: World, caller: Caller, row: Row) -> list[str]:
    """The verbs that a caller may use on one resource, as the file has them."""
    access = world.service.access
    names = row.names or (OBJECTS.get(row.resource, "some"),)
    found = []
    for verb in row.verbs:
        collection = verb in (*READS, "deletecollection") or (verb == "create" and not row.subresource)
        path = ResourcePath(row.group, "v1", row.resource, row.namespace, "", row.subresource)
        wanted = [attributes_of(path._replace(name="" if collection else name), verb) for name in names]
        allowed = [await access.allows(caller, each) for each in wanted]
        own = wanted[0]._replace(field_selector="spec.nodeName=node-a")
        if any(allowed):
            found.append(verb if all(allowed) else f"{verb}@some")
        elif verb in READS and await access.allows(caller, own):
            found.append(f"{verb}@own")
    return found


async def matrix() -> str:
    world = await populated_world()
    lines = [HEAD]
    for row in rows():
        by_answer: dict[str, list[str]] = {}
        for name, caller in CALLERS.items():
            found = await answers(world, caller, row)
            answer = "*" if len(found) == len(row.verbs) else ",".join(found) or "-"
            by_answer.setdefault(answer, []).append(name)
        lines.append(f"{row.title}\n")
        lines += [f"    {answer:<58} {' '.join(names)}\n" for answer, names in by_answer.items()]
    for method, paths in PATHS.items():
        lines.append(f"paths that are no resources ({method})\n")
        for path in paths:
            names = [name for name, each in CALLERS.items() if world.service.access.allows_path(each, method, path)]
            lines.append(f"    {path:<58} {' '.join(names)}\n")
    lines.append(CONTROLLERS_HEAD)
    for user in controller_users().values():
        lines += [f"{user}\n", *[f"{line}\n" for line in await rights_of_controller(world, user)]]
    world.service.stop_access()
    return "".join(lines)


async def rights_of_controller(world: World, user: str) -> list[str]:
    """A line for each set of verbs; first the verbs that it may use on everything, subresources too."""
    caller, plain = Caller(user, (AUTHENTICATED,)), CALLERS["user"]
    served = [row for row in rows() if row.verbs == VERBS]
    allowed = {row: await answers(world, caller, row) for row in rows()}
    wide = [verb for verb in VERBS if all(verb in allowed[row] for row in served)]
    by_verbs: dict[str, list[str]] = {",".join(wide): ["everything"]} if wide else {}
    for row, verbs in allowed.items():
        known = {*wide, *await answers(world, plain, row)}
        rest = ",".join(verb for verb in verbs if verb not in known)
        if rest:
            by_verbs.setdefault(rest, []).append(row.title)
    return [f"    {verbs:<20} {' '.join(titles)}" for verbs, titles in by_verbs.items()]


async def populated_world() -> World:
    """Two nodes, a pod on node-a that refers to a Secret and a ConfigMap, and the roles of controllers too."""
    world = await guarded_world()
    await world.service.ensure_default_roles(controller_roles())
    for name in ("node-a", "node-b"):
        await world.service.create(NODE, node(name))
    body = pod()
    body["spec"]["volumes"] = [
        {"name": "v", "secret": {"secretName": "key"}}, {"name": "w", "configMap": {"name": "settings"}},
    ]  # fmt: skip
    made = await world.create(body)
    await world.service.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
    for user, role in (("viewer", "view"), ("editor", "edit"), ("tenant", "admin")):
        await world.create(binding(user, f"ClusterRole/{role}", f"User/{user}", namespace="default"))
    return world


@asynchronous
async def test_every_caller_may_what_the_file_lists_and_nothing_else() -> None:
    assert await matrix() == FILE.read_text(), (
        "run python -m tests.unit.http.test_access_matrix and read the difference"
    )


if __name__ == "__main__":
    FILE.write_text(asyncio.run(matrix()))
