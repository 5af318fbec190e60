"""The matrix: every verb on every kind and subresource, as every sort of caller, against one readable file.

`python -m tests.unit.http.test_access_matrix` writes the file again; read the difference before you keep it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

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
from kedge.server.http.resources import OWN_SUBRESOURCES
from kedge.server.http.reviews import REVIEWS
from kedge.server.http.routes import ResourcePath, attributes_of

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
    "joining": Caller("system:bootstrap:abcdef", (BOOTSTRAPPERS, joining_group("agent"), AUTHENTICATED)),
    "own-agent": agent_of("node-a"),
    "other-agent": agent_of("node-b"),
    "scheduler": Caller("scheduler", (SCHEDULERS, AUTHENTICATED)),
    "controllers": Caller("controllers", (CONTROLLERS, AUTHENTICATED)),
    "monitoring": Caller("prometheus", (METRICS_READERS, AUTHENTICATED)),
    "administrator": ADMIN,
}
"""The agent is that of node-a, where the only pod is; viewer, editor and tenant have their roles in `default`."""
PATHS = (
    "/", "/api", "/apis/apps/v1", "/openapi/v3", "/version", "/livez", "/metrics", "/kedge/backup",
    "/kedge/debug/queues",
)  # fmt: skip
HEAD = """\
# A resource, then a line for each answer: the verbs, and the callers that may use them on an object in the namespace
# `default` or at the cluster scope. `-` is none, `*` is all. The object is of node-a where there is such a one. `@own`
# marks lists and watches that an agent makes with the selector of its own node alone. Writes that would
# give rights away (roles, bindings, tokens, other nodes) fail in their commit: tests/unit/service/access has those.
"""


def resources() -> Iterator[tuple[str, str, str, bool]]:
    """Group, resource, subresource and scope of everything that is served."""
    for kind in KINDS:
        own = OWN_SUBRESOURCES.get(kind.key_kind, ())
        for subresource in ("", *sorted({*kind.subresources, *own})):
            yield kind.group, kind.plural, subresource, kind.namespaced
    for review in REVIEWS:
        yield review.group, review.plural, "", review.namespaced
    for resource in ("users", "groups", "serviceaccounts"):
        yield "", f"{resource} (impersonate)", "", resource == "serviceaccounts"


async def answers(world: World, caller: Caller, group: str, resource: str, subresource: str, namespace: str) -> str:
    """The verbs that a caller may use on one resource, as the file has them."""
    access = world.service.access
    plain, _, only = resource.partition(" ")
    verbs = ("impersonate",) if only else ("create",) if plain.endswith("reviews") else VERBS
    named = {"pods": "web-0", "nodes": "node-a", "nodeallocations": "node-a", "leases": "node-a", "secrets": "key"}
    named |= {"configmaps": "settings", "serviceaccounts": "default", "namespaces": "default"}
    name = named.get(plain, "some")
    namespace = "kube-node-lease" if plain == "leases" and "agent" in _name_of(caller) else namespace
    found = []
    for verb in verbs:
        collection = verb in (*READS, "deletecollection") or (verb == "create" and not subresource)
        path = ResourcePath(group, "v1", plain, namespace, "" if collection else name, subresource)
        wanted = attributes_of(path, verb)
        if await access.allows(caller, wanted):
            found.append(verb)
        elif verb in READS and await access.allows(caller, wanted._replace(field_selector="spec.nodeName=node-a")):
            found.append(f"{verb}@own")
    return "*" if len(found) == len(verbs) else ",".join(found) or "-"


def _name_of(caller: Caller) -> str:
    return next(name for name, each in CALLERS.items() if each == caller)


async def matrix() -> str:
    world = await guarded_world()
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
    lines = [HEAD]
    for group, resource, subresource, namespaced in resources():
        named = f"{resource}{'.' if group else ''}{group}{'/' if subresource else ''}{subresource}"
        namespace = "default" if namespaced else ""
        lines.append(f"{named}\n")
        by_answer: dict[str, list[str]] = {}
        for name, caller in CALLERS.items():
            answer = await answers(world, caller, group, resource, subresource, namespace)
            by_answer.setdefault(answer, []).append(name)
        lines += [f"    {answer:<58} {' '.join(names)}\n" for answer, names in by_answer.items()]
    lines.append("paths that are no resources (get)\n")
    for path in PATHS:
        names = [name for name, each in CALLERS.items() if world.service.access.allows_path(each, "get", path)]
        lines.append(f"    {path:<58} {' '.join(names)}\n")
    world.service.stop_access()
    return "".join(lines)


@asynchronous
async def test_every_caller_may_what_the_file_lists_and_nothing_else() -> None:
    assert await matrix() == FILE.read_text(), (
        "run python -m tests.unit.http.test_access_matrix and read the difference"
    )


if __name__ == "__main__":
    FILE.write_text(asyncio.run(matrix()))
