"""The caller beside each version is the user that the server authenticated, whatever the request states."""

from __future__ import annotations

from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, create_config_map, request

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest


class NamedAuthenticator(Authenticator):
    def caller(self, request: HttpRequest) -> Caller:
        del request
        return Caller("Ada Łę:x@y", (MASTERS, "a, b", AUTHENTICATED))


@on_loop
async def test_a_reply_has_the_authenticated_caller_of_the_version() -> None:
    async with local_api(authenticator=NamedAuthenticator()) as (_, port):
        await create_config_map(port, "web")
        forged = b"Host: x\r\nKedge-Origins: 1\r\nKedge-Caller: mallory\r\nKedge-Groups: mallory"
        patch = request("PATCH", f"{CONFIG_MAPS}/web", {"data": {"a": "1"}}, "application/merge-patch+json")
        for sent in (patch, request("GET", f"{CONFIG_MAPS}/web")):
            reply = await exchange(port, sent.replace(b"Host: x", forged), end=False)
            assert b"kedge-caller: Ada%20%C5%81%C4%99:x@y\r\n" in reply, reply
            assert b"kedge-groups: system:masters,a%2C%20b\r\n" in reply, reply
        listed = await exchange(port, request("GET", CONFIG_MAPS).replace(b"Host: x", forged), end=False)
        assert '"Ada Łę:x@y",["system:masters","a, b"]]'.encode() in listed
        assert b"mallory" not in listed
