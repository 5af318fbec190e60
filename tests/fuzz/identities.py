"""The callers of fuzzed requests: an administrator, a user without rights, an agent, and a caller without identity.

A server over TLS knows a caller by its certificate, a server in the process of the test by the header that each request
has. An input in the corpus has the header too, so its caller is the same when the tests send it again.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.kit.access import NamedAuthenticator

from kedge.api.access import AUTHENTICATED, MASTERS, NODES, Caller
from kedge.server.http.certificates import Authority
from kedge.server.http.exchange import HttpRequest


class Identity(NamedTuple):
    """A caller. One without a user shows no certificate."""

    user: str
    groups: tuple[str, ...] = ()

    def header(self, source: random.Random) -> dict[str, str]:
        if self is ADMINISTRATOR:
            return {}
        return {"Authorization": f"Named {','.join([self.user, *self.groups])}" if self.user else source.choice(TOKENS)}


ADMINISTRATOR: Final = Identity("fuzz", (MASTERS,))
WITHOUT_RIGHTS: Final = Identity("ada")
AGENT: Final = Identity("system:node:node-1", (NODES,))
NO_IDENTITY: Final = Identity("")
IDENTITIES: Final = (ADMINISTRATOR, WITHOUT_RIGHTS, AGENT, NO_IDENTITY)
WEIGHTS: Final = (60, 15, 15, 10)
TOKENS: Final = (
    "", "Basic x", "Bearer", "Bearer ", "Bearer x", "Bearer é", "Bearer a.b.c", "Bearer ..",
    "bearer abcdef.0123456789abcdef", "Bearer kedge-abcdef.0123456789abcdef", "Bearer " + "x" * 9_000,
    "Bearer e30.e30.AAAA", "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.e30.AAAA",
    "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6MX0.W10.AAAA",
    f"Bearer {'W1tb' * 1_000}.e30.AAAA",
)  # fmt: skip
"""Values of `Authorization` by which no server knows a caller: no bearer token, unknown ones, JSON Web Tokens."""


class FuzzAuthenticator(NamedAuthenticator):
    """Believes the header of an identity. A request without it is an administrator's."""

    def caller(self, request: HttpRequest) -> Caller | None:
        shown = request.headers.get(b"authorization")
        if shown is None:
            return Caller(ADMINISTRATOR.user, (*ADMINISTRATOR.groups, AUTHENTICATED))
        return super().caller(request) if shown.startswith(b"Named ") else None


def tls_contexts(state: Path) -> Mapping[Identity, ssl.SSLContext]:
    """The TLS of each identity at the server with this state."""
    now, found = datetime.now(UTC), {}
    authority = Authority.ensure(state, now)
    for number, each in enumerate(IDENTITIES):
        context = ssl.create_default_context(cafile=str(state / "ca.crt"))
        if each.user:
            path = state / f"fuzz-{number}.pem"
            authority.ensure_client(path, each.user, each.groups, now)
            context.load_cert_chain(path)
        found[each] = context
    return found
