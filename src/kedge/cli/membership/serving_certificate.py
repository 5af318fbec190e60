"""The serving certificate of an agent's endpoint: requested once its Node exists, and renewed.

The key and the certificate are in memory: each start of an agent requests another. API servers verify it against the
cluster's authority, with the node in its subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kedge.api.wellknown import AGENT_HOST, AGENT_SERVING_SIGNER, NODE_KIND
from kedge.backoff import jittered
from kedge.cli.membership.certificates import agent_identity, renewal_of, request_certificate
from kedge.cli.membership.component_membership import RENEWED_FROM, RENEWED_UNTIL
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import KedgeError, OperatingError
from kedge.keys import Key
from kedge.server.http.certificates import Certificate

_LOOK_S_MIN: Final = 0.05
_LOOK_S_MAX: Final = 2.0


class ServingCertificate:
    """Requests the certificate of one endpoint, and renews it."""

    def __init__(
        self,
        client: Client,
        env: Env,
        node: str,
        *,
        use: Callable[[bytes], None],
        notify: Callable[[str], None],
    ) -> None:
        """`use` gets each certificate with its key, as PEM."""
        self._client = client
        self._env = env
        self._node = node
        self._use = use
        self._notify = notify
        self._left = env.metrics.gauge(
            "kedge_agent_certificate_left_seconds", "Time until the certificate of an agent's endpoint ends", ("node",)
        ).labels(node)

    async def run(self) -> None:
        """Request and renew, for ever. A failure is reported and tried again: the agent runs its pods meanwhile."""
        kept: Certificate | None = None
        renewed = self._env.now()
        while True:
            if kept is not None:
                self._left.set((kept.certificate.not_valid_after_utc - self._env.now()).total_seconds())
            if kept is None or self._env.now() >= renewed:
                try:
                    kept = await self._request()
                    renewed = renewal_of(kept, self._env.random.uniform(RENEWED_FROM, RENEWED_UNTIL))
                    continue
                except KedgeError as error:
                    self._notify(f"has no new certificate for logs and exec: {error}")
            pause_s = self._env.limits.agent_retry_s if kept is None else self._env.limits.certificate_check_s
            await asyncio.sleep(jittered(pause_s, self._env.random))

    async def _request(self) -> Certificate:
        await self._wait_for_node()
        made = await request_certificate(
            self._client,
            agent_identity(self._node),
            self._notify,
            signer=AGENT_SERVING_SIGNER,
            usage="server auth",
            names=(AGENT_HOST,),
        )
        self._use(made.pem)
        return made

    async def _wait_for_node(self) -> None:
        """The rule approves certificates for a Node that exists; a request before that would wait for a person."""
        look_s = _LOOK_S_MIN
        while True:
            try:
                if await self._client.find(Key(NODE_KIND, "", self._node)) is not None:
                    return
            except OperatingError:
                pass  # looked for again
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, _LOOK_S_MAX)
