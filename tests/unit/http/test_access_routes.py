"""Every route asks the authorizer: each method on each path that is served, sent over HTTP by users without rights.

`test_access_matrix` has the answers of the authorizer. A route that forgets to ask it is found here alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.kit.access import ADA, ADMIN, GuardedApi, guarded_api
from tests.kit.loops import on_loop

from kedge.api.access import Caller
from kedge.api.kinds import KINDS, Kind
from kedge.api.wellknown import (
    AUTHENTICATION_GROUP,
    AUTHORIZATION_GROUP,
    NAMESPACE_KIND,
    POD_KIND,
    ROTATE_KEYS_PATH,
)
from kedge.server.http.pod_streams import SUBRESOURCES
from kedge.server.http.resources import OWN_SUBRESOURCES
from kedge.server.http.reviews import REVIEWS
from kedge.server.http.usage_metrics import METRICS_KINDS
from kedge.server.http.versions import listed_versions

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "WATCH")
"""`WATCH` is a GET with the parameter `watch`."""
ABOUT_ITSELF = {
    (AUTHENTICATION_GROUP, "selfsubjectreviews"),
    (AUTHORIZATION_GROUP, "selfsubjectaccessreviews"),
    (AUTHORIZATION_GROUP, "selfsubjectrulesreviews"),
}
"""Reviews that every authenticated user may send: docs/wire.md."""
OPEN = ("/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1")
"""Documents that every authenticated user may read: the role `system:discovery`."""
OWN_PATHS = (
    "/", "/metrics", "/kedge/backup", ROTATE_KEYS_PATH, "/kedge/incidents", "/kedge/incidents/i",
    "/kedge/incidents/i/agent-a", "/kedge/incidents/i/agent-a/0", "/kedge/debug/queues", "/kedge/debug/caches",
    "/kedge/other", "/ui/link",
)  # fmt: skip
AT_ONCE = 16


CREATED_ALONE = dataclasses.replace(KINDS.resolve("horizontalpodautoscaler"), version="v1")
"""A version that is served for creation, and that discovery does not list."""
READING = ("GET", "HEAD", "WATCH")
FORBIDDEN, NO_VERB, NO_ROUTE = frozenset({403}), frozenset({405}), frozenset({404, 405})


class Try(NamedTuple):
    method: str
    path: str
    codes: frozenset[int] = FORBIDDEN
    """The refusals that are allowed."""


def tries() -> Iterator[Try]:
    for kind in (*KINDS, *listed_versions(), CREATED_ALONE):
        parts = {*kind.subresources, *OWN_SUBRESOURCES.get(kind.key_kind, ())}
        parts |= SUBRESOURCES if kind.kind == POD_KIND else frozenset()
        for collection in collections(kind):
            yield from (Try(method, collection, codes_of_collection(kind, method)) for method in METHODS)
            for path in (f"{collection}/some", *(f"{collection}/some/{each}" for each in sorted(parts))):
                yield from (Try(method, path) for method in METHODS)
    for kind in METRICS_KINDS:
        for collection in collections(kind):
            for path in (collection, f"{collection}/some"):
                yield from (Try(e, path, FORBIDDEN if e in ("GET", "HEAD") else NO_VERB) for e in METHODS)
    for group, version, _, plural, namespaced in REVIEWS:
        path = f"/apis/{group}/{version}/{'namespaces/default/' if namespaced else ''}{plural}"
        if (group, plural) not in ABOUT_ITSELF:
            yield Try("POST", path)
        yield from (Try(method, path, NO_ROUTE) for method in METHODS if method != "POST")
    yield from (Try(method, path) for path in OWN_PATHS for method in METHODS)
    yield from (Try(method, path) for path in OPEN for method in ("POST", "PUT", "PATCH", "DELETE"))
    for path in ("/api/v1/namespaces/default/secrets/some", "/api/v1/nodes/some"):
        yield from (Try(e, f"/kedge/origins{path}", FORBIDDEN if e in READING else NO_VERB) for e in METHODS)


def collections(kind: Kind) -> Iterator[str]:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    yield f"{root}/{kind.plural}"
    if kind.namespaced:
        yield f"{root}/namespaces/default/{kind.plural}"


def codes_of_collection(kind: Kind, method: str) -> frozenset[int]:
    if method in ("PUT", "PATCH") or (kind.key_kind == NAMESPACE_KIND and method == "DELETE"):
        return NO_VERB
    return FORBIDDEN


async def wrong_answers(api: GuardedApi, caller: Caller | None, expected: frozenset[int] | None = None) -> list[str]:
    """A line for each request whose code is not `expected`, or not allowed by its own list if that is None."""
    found: list[str] = []
    waiting = asyncio.Semaphore(AT_ONCE)

    async def send(each: Try) -> None:
        method, path = ("GET", f"{each.path}?watch=true") if each.method == "WATCH" else (each.method, each.path)
        async with waiting:
            code, _ = await api.send(caller, method, path, None if method in READING else {})
        if code not in (each.codes if expected is None else expected):
            found.append(f"{method} {path}: {code}")

    await asyncio.gather(*(send(each) for each in dict.fromkeys(tries())))
    return found


@on_loop
async def test_every_request_of_a_user_without_rights_is_forbidden() -> None:
    async with guarded_api() as api:
        assert await wrong_answers(api, ADA) == []


@on_loop
async def test_every_request_without_an_identity_is_unauthorized() -> None:
    async with guarded_api() as api:
        assert await wrong_answers(api, None, frozenset({401})) == []


@on_loop
async def test_the_calls_of_a_batch_are_forbidden_one_by_one() -> None:
    objects = "/api/v1/namespaces/default/secrets"
    calls = [["POST", objects], ["PUT", f"{objects}/some"], ["DELETE", f"{objects}/some"], ["POST", ROTATE_KEYS_PATH]]
    async with guarded_api() as api:
        code, answers = await api.send(ADA, "POST", "/kedge/batch", [[*call, {}, {}] for call in calls])
    assert code == 200
    assert [json.loads(line)[1] for line in answers.splitlines()] == [403] * len(calls)


@on_loop
async def test_the_tries_cover_every_path_that_the_server_lists() -> None:
    async with guarded_api() as api:
        _, root = await api.send(ADMIN, "GET", "/")
    tried = {each.path for each in tries()}
    unlisted = {
        path for path in root["paths"] if not any(path == each or each.startswith(f"{path}/") for each in tried)
    }
    assert unlisted == {"/version", "/livez", "/readyz", "/healthz"}, "these need no identity"
