"""`GET /kedge/origins`: the write behind a version, for callers that may read the object."""

from __future__ import annotations

from typing import Any

from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, sent

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest

WEB = f"/kedge/origins{CONFIG_MAPS}/web"


class SwitchedAuthenticator(Authenticator):
    """Takes every caller for the user that the test sets."""

    user = Caller("ada", (MASTERS, AUTHENTICATED))

    def caller(self, request: HttpRequest) -> Caller:
        del request
        return self.user


@on_loop
async def test_a_revision_leads_to_its_caller_groups_and_decision() -> None:
    users = SwitchedAuthenticator()
    async with local_api(authenticator=users) as (_, port):
        await create_config_map(port, "web")
        code, _, made = await sent(port, "GET", f"{CONFIG_MAPS}/web")
        users.user = Caller("bob", (MASTERS, "people", AUTHENTICATED))
        await sent(port, "PATCH", f"{CONFIG_MAPS}/web", {"data": {"a": "1"}}, MERGE)
        first = int(made["metadata"]["resourceVersion"])
        code, _, found = await sent(port, "GET", f"{WEB}?revision={first}")
        assert (code, found["caller"], found["groups"], found["revision"]) == (200, "ada", [MASTERS], first)
        code, _, newest = await sent(port, "GET", WEB)
        assert newest == {
            "apiVersion": "kedge.dev/v1",
            "kind": "VersionOrigin",
            "object": "ConfigMap/default/web",
            "condition": "",
            "asked": None,
            "revision": newest["revision"],
            "created": first,
            "deleted": False,
            "decision": "",
            "controller": "",
            "operation": "",
            "caller": "bob",
            "groups": [MASTERS, "people"],
        }
        assert newest["revision"] > first


@on_loop
async def test_a_caller_that_may_not_read_the_object_learns_nothing_of_its_writes() -> None:
    users = SwitchedAuthenticator()
    async with local_api(authenticator=users) as (_, port):
        await create_config_map(port, "web")
        users.user = Caller("mallory", (AUTHENTICATED,))
        code, _, body = await sent(port, "GET", WEB)
        assert (code, body["reason"]) == (403, "Forbidden")
        assert 'cannot get resource "configmaps"' in body["message"]


@on_loop
async def test_errors_are_those_of_reads() -> None:
    async with local_api() as (server, port):
        await create_config_map(port, "web")
        expected: dict[str, tuple[int, Any]] = {
            f"/kedge/origins{CONFIG_MAPS}/missing": (404, "NotFound"),
            f"/kedge/origins{CONFIG_MAPS}": (404, "NotFound"),
            "/kedge/origins": (404, "NotFound"),
            f"{WEB}?revision=nine": (400, "BadRequest"),
            f"{WEB}?condition=Ready": (404, "NotFound"),
        }
        for path, answer in expected.items():
            code, _, body = await sent(port, "GET", path)
            assert (code, body["reason"]) == answer, path
        assert (await sent(port, "POST", WEB, {}))[0] == 405
        store = server.handler._service._core.store
        await sent(port, "PATCH", f"{CONFIG_MAPS}/web", {"data": {"a": "1"}}, MERGE)
        await store.compact(await store.revision())
        code, _, body = await sent(port, "GET", f"{WEB}?revision=1")
        assert (code, body["reason"]) == (410, "Expired")
