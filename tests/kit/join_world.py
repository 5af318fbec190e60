"""An API server over HTTPS in this process, whose clock a test moves, and components that join it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kedge.api.access import MASTERS, Caller, joining_group
from kedge.api.bootstrap_tokens import bootstrap_secret
from kedge.api.wellknown import SECRET_KIND, SYSTEM_NAMESPACE
from kedge.cli.membership.certificates import ComponentIdentity, KeptIdentity, agent_identity
from kedge.cli.membership.component_membership import Membership
from kedge.cli.membership.join_token import JoinToken, new_bootstrap_token
from kedge.cli.server import ServerIdentity, ensure_identity, start_https, url_of
from kedge.cli.wiring import ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


class NotingAuthenticator(Authenticator):
    """Notes the tokens that callers send."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def token_caller(self, request: HttpRequest, service: Service, env: Env) -> Caller:
        self.tokens.append(request.headers.get(b"authorization", b"").decode().removeprefix("Bearer "))
        return await super().token_caller(request, service, env)


@dataclass
class JoinWorld:
    """TLS uses the clock of the machine; everything else has a clock that is `ahead` of it."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    ahead: timedelta = timedelta()
    notes: list[str] = field(default_factory=list)
    """Lines that components printed."""

    def __post_init__(self) -> None:
        self.env: Env = replace(system_env(limits=self.limits), now=lambda: datetime.now(UTC) + self.ahead)
        self.service: Service
        self.identity: ServerIdentity
        self.url = ""
        self.authenticator = NotingAuthenticator()

    @property
    def client(self) -> Client:
        transport = DirectTransport(self.service, caller="test", groups=(MASTERS,))
        return Client(transport, self.env, component="test")

    async def make_token(self, component: str = "agent", valid_s: float = 3600.0) -> JoinToken:
        made = new_bootstrap_token()
        expires = self.env.now() + timedelta(seconds=valid_s)
        body = bootstrap_secret(made, [joining_group(component)], expires, "")
        kind = self.client.kinds.of_key_kind(SECRET_KIND)
        await self.client.create(kind, body, namespace=SYSTEM_NAMESPACE)
        return JoinToken(self.identity.authority.fingerprint, made)

    def member(
        self, token: JoinToken | None, identity: ComponentIdentity | None = None, *, url: str = ""
    ) -> Membership:
        who = identity or agent_identity("node-a")
        path = self.folder / f"{who.component}.kubeconfig"
        return Membership(url or self.url, token, path, who, self.env, notify=self.notes.append)

    def kept(self, component: str = "agent") -> KeptIdentity:
        found = KeptIdentity.read(self.folder / f"{component}.kubeconfig")
        assert found is not None
        return found


@asynccontextmanager
async def join_world(
    folder: Path, limits: Limits | None = None, *, ahead: timedelta = timedelta()
) -> AsyncIterator[JoinWorld]:
    world = JoinWorld(folder / "members", limits or Limits(), ahead)
    world.folder.mkdir()
    (folder / "server").mkdir()
    world.identity = ensure_identity(folder / "server", "127.0.0.1", world.env)
    store = MemoryStore(world.env)
    keys, signer = world.identity.token_keys, world.identity.signer
    world.service = Service(store, world.env, token_keys=keys, certificate_signer=signer)
    await ensure_namespaces(world.client)
    await world.service.ensure_default_roles()
    server = ApiServer(world.service, world.env, authenticator=world.authenticator)
    port = await start_https(server, world.identity, "127.0.0.1", 0)
    world.url = url_of("127.0.0.1", port)
    try:
        yield world
    finally:
        await server.stop()
        await store.close()
