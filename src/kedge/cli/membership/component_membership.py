"""One component's membership in a cluster: it joins if it has no valid certificate, and renews the one it has.

The certificate is in a kubeconfig in the state folder. `component` follows that file, so that a renewed certificate is
used without a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509

from kedge.cli.membership.certificates import ComponentIdentity, KeptIdentity, request_certificate
from kedge.cli.membership.first_contact import fetch_authority, token_address
from kedge.cli.membership.join_token import JoinToken
from kedge.client.contract import Client, Transport
from kedge.client.http import HttpTransport
from kedge.env import Env
from kedge.errors import KedgeError, Terminal, Unauthorized, Unavailable
from kedge.server.http.certificates import key_fingerprint

RENEWED_FROM, RENEWED_UNTIL = 0.7, 0.9
"""Parts of a certificate's life between which its renewal is drawn, so that agents that joined together spread."""
_RETRY_S: Final = 2.0


class Membership:
    """Joins, then renews. One component has one."""

    def __init__(
        self,
        url: str,
        token: JoinToken | None,
        kubeconfig: Path,
        identity: ComponentIdentity,
        env: Env,
        *,
        notify: Callable[[str], None],
    ) -> None:
        """Without `token` it needs the certificate of an earlier start."""
        self._url = url
        self._token = token
        self._identity = identity
        self._env = env
        self._notify = notify
        self.kubeconfig = kubeconfig
        self._renewals = env.metrics.counter(
            "kedge_certificate_renewals_total", "Renewals of this component's certificate, by outcome", ("outcome",)
        )
        self._left = env.metrics.gauge("kedge_certificate_left_seconds", "Time until this component's certificate ends")

    async def ensure_joined(self) -> None:
        """Write the kubeconfig of this component, unless it has a valid one. Waits for the server, and for approval.

        Raises:
            Terminal: there is neither a valid certificate nor a token, or the server is of another cluster.
            Unauthorized: the token has expired or was deleted.
        """
        kept = KeptIdentity.read(self.kubeconfig)
        problem = self._problem(kept)
        if not problem:
            return
        if self._token is None:
            raise Terminal(
                f"{problem}: pass --token with the output of `kedge token create --for {self._identity.component}`"
            )
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unreachable = ""
        while True:
            try:
                made = await self._join(self._token)
            except Unavailable as error:
                if str(error) != unreachable:
                    unreachable = str(error)
                    self._notify(f"waits for {self._url}: {unreachable}")
                await asyncio.sleep(_RETRY_S)
                continue
            made.write(self.kubeconfig)
            self._notify(f"has joined as {made.user}; its certificate is valid until {made.ends:%Y-%m-%d %H:%M:%S} UTC")
            return

    def _problem(self, kept: KeptIdentity | None) -> str:
        """Why the component must join; empty if it need not."""
        if kept is None:
            return f"{self.kubeconfig} does not exist"
        if kept.user != self._identity.user:
            return f"{self.kubeconfig} is of the user {kept.user}, not {self._identity.user}"
        if kept.ends <= self._env.now():
            return f"the certificate in {self.kubeconfig} has expired"
        known = {key_fingerprint(each) for each in x509.load_pem_x509_certificates(kept.authority_pem)}
        if self._token is not None and self._token.authority_sha256 not in known:
            return f"{self.kubeconfig} is of another cluster"
        return ""

    async def _join(self, token: JoinToken) -> KeptIdentity:
        authority = await fetch_authority(self._url, token)
        transport = HttpTransport(token_address(self._url, token, authority))
        try:
            client = Client(transport, self._env, component=self._identity.component)
            certificate = await request_certificate(client, self._identity, self._notify)
        except Unauthorized as error:
            raise Unauthorized(
                f"{error.message}; make another one with `kedge token create --for {self._identity.component}`"
            ) from error
        finally:
            await transport.close()
        return KeptIdentity(certificate, authority, self._url)

    async def run_renewals(self, transport: Transport) -> None:
        """Renew the certificate at a drawn moment of its life, for ever. `transport` has the current identity."""
        client = Client(transport, self._env, component=self._identity.component)
        kept = KeptIdentity.read(self.kubeconfig)
        part = self._draw()
        while True:
            if kept is not None:
                left = (kept.ends - self._env.now()).total_seconds()
                self._left.set(left)
                if self._env.now() >= kept.renewal(part):
                    kept, part = await self._renew(client, kept), self._draw()
                    continue
            await asyncio.sleep(self._env.limits.certificate_check_s)

    async def _renew(self, client: Client, kept: KeptIdentity) -> KeptIdentity:
        """The renewed identity; the one before if that failed, after a pause."""
        try:
            certificate = await request_certificate(client, self._identity, self._notify)
        except KedgeError as error:
            self._renewals.labels("failed").inc()
            self._notify(f"its certificate was not renewed and ends at {kept.ends:%Y-%m-%d %H:%M:%S} UTC: {error}")
            await asyncio.sleep(self._env.limits.certificate_check_s)
            return kept
        renewed = kept._replace(certificate=certificate)
        renewed.write(self.kubeconfig)
        self._renewals.labels("renewed").inc()
        self._notify(f"has renewed its certificate, which is valid until {renewed.ends:%Y-%m-%d %H:%M:%S} UTC")
        return renewed

    def _draw(self) -> float:
        return self._env.random.uniform(RENEWED_FROM, RENEWED_UNTIL)
