"""The certificates of a server itself, for clients, for agents and of its administrator, renewed while it runs.

`server` and `local` make them at each start and run the renewals. Joined components renew their own (`membership`). The
authority itself is never renewed.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from kedge.api.access import MASTERS
from kedge.api.wellknown import API_SERVERS_GROUP
from kedge.env import Env
from kedge.logs import INFO, WARNING
from kedge.server.http.agents import agent_client_context
from kedge.server.http.certificates import ADMIN, Authority, Certificate
from kedge.server.http.server import TlsFiles, tls_context

SERVING: Final = "serving.pem"
AGENT_CLIENT: Final = "agent-client.pem"
"""The certificate by which agents recognise the API server."""
_CLIENT_USER: Final = "kedge-api-server"


class OwnCertificates:
    """The certificates of one server: files in its state folder, and the TLS contexts that have them."""

    def __init__(self, authority: Authority, state: Path, hosts: list[str], authority_file: Path, env: Env) -> None:
        """Make or read the certificates. `hosts` are the names and addresses of the server."""
        self._authority = authority
        self._state = state
        self._hosts = hosts
        self._env = env
        self._used = {name: self._ensure(name) for name in (SERVING, AGENT_CLIENT)}
        self.tls = tls_context(TlsFiles(serving=state / SERVING, authority=authority_file))
        self.agents_tls = agent_client_context(state / AGENT_CLIENT, authority_file)
        self._left = env.metrics.gauge(
            "kedge_server_certificate_left_seconds", "Time until a server's own certificate ends", ("certificate",)
        )

    async def run_renewals(self, kubeconfig: Path) -> None:
        """Renew, for ever. A failure is logged and tried again: the old certificates are used meanwhile."""
        while True:
            self.renew(kubeconfig)
            await asyncio.sleep(self._env.limits.certificate_check_s)

    def renew(self, kubeconfig: Path) -> None:
        """Make certificates again that end soon or are missing, and use them for new connections. Open ones go on.

        The administrator's kubeconfig is renewed where it is; one that was removed is not made again.
        """
        for name, context in ((SERVING, self.tls), (AGENT_CLIENT, self.agents_tls)):
            try:
                self._renew(name, context)
            except Exception as error:  # noqa: BLE001  one damaged file must not end the renewals of the others
                self._not_renewed(name, error)
            self._show_left(name, self._used[name])
        try:
            admin = self._authority.renew_kubeconfig(kubeconfig, ADMIN, (MASTERS,), self._env.now())
        except Exception as error:  # noqa: BLE001  as above
            self._not_renewed(kubeconfig.name, error)
        else:
            if admin is not None:
                self._show_left(kubeconfig.name, admin)

    def _renew(self, name: str, context: ssl.SSLContext) -> None:
        made = self._ensure(name)
        if made.certificate != self._used[name].certificate:
            context.load_cert_chain(self._state / name)
            self._used[name] = made
            self._env.log.write(INFO, f"{name} was renewed: valid until {_end(made)}", {})

    def _not_renewed(self, name: str, error: Exception) -> None:
        self._env.log.write(WARNING, f"{name} was not renewed: {error}", {})

    def _ensure(self, name: str) -> Certificate:
        now = self._env.now()
        if name == SERVING:
            return self._authority.ensure_serving(self._state / name, self._hosts, now)
        return self._authority.ensure_client(self._state / name, _CLIENT_USER, (API_SERVERS_GROUP,), now)

    def _show_left(self, name: str, made: Certificate) -> None:
        left = made.certificate.not_valid_after_utc - self._env.now()
        self._left.labels(name).set(left.total_seconds())


def _end(made: Certificate) -> str:
    return f"{made.certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"
