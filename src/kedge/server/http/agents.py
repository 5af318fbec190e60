"""Connections from the API server to agents: TLS both ways, with certificates of the cluster's authority.

A Node has the address and the port of its agent in its status. They are read for each connection, so an agent that has
started again is found at its new port. Its certificate must be that of an agent, with the user of that node.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.api.access import NODES
from kedge.api.objects import Object
from kedge.api.requests import Get
from kedge.api.views import NodeView
from kedge.api.wellknown import AGENT_HOST, NODE_KIND
from kedge.env import Env
from kedge.errors import NotFound, OperatingError
from kedge.keys import NODE_USER_PREFIX, Key
from kedge.server.service import Service


class AgentUnreachable(OperatingError):
    """The agent of a node cannot be reached. Start it, or try again when its node is Ready."""

    code, reason, cause = 502, "InternalError", "AgentUnreachable"


def agent_client_context(certificate: Path, authority: Path) -> ssl.SSLContext:
    """TLS for connections to agents: the API server's client certificate, and the authority of their own.

    It verifies the time and the use of a certificate; `AgentDialer` verifies that it is that of the node's agent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate)
    return context


class AgentDialer:
    """Opens connections to the agents of a cluster."""

    def __init__(self, service: Service, env: Env, tls: ssl.SSLContext | None) -> None:
        """Without `tls` no agent can be reached."""
        self._service = service
        self._limits = env.limits
        self._tls = tls

    async def connect(self, node: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the agent of a node.

        Raises:
            AgentUnreachable: it is not there, does not answer, or is another program than the Node names.
        """
        if self._tls is None:
            raise AgentUnreachable("this server has no certificate to show to agents: start it with kedge server")
        host, port = self._address(node, await self._read(node))
        try:
            async with asyncio.timeout(self._limits.stream_connect_s):
                reader, writer = await asyncio.open_connection(
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=AGENT_HOST,
                    limit=self._limits.stream_buffer_bytes,
                )
        except ssl.SSLCertVerificationError as error:
            raise AgentUnreachable(
                f"{host}:{port} is not the agent of node {node}: its certificate is refused ({error.verify_message}); "
                "try again when the agent has started or has renewed it"
            ) from error
        except (OSError, TimeoutError) as error:
            raise AgentUnreachable(
                f"the agent of node {node} cannot be reached at {host}:{port} ({error or 'no answer'}): "
                "check that it runs (kedge agent), then try again"
            ) from error
        if not is_agent_of(node, writer.get_extra_info("peercert")):
            writer.transport.abort()
            raise AgentUnreachable(
                f"{host}:{port} is not the agent of node {node}: its certificate is of another one; try again when the "
                "agent has started"
            )
        writer.transport.set_write_buffer_limits(high=self._limits.stream_buffer_bytes)
        return reader, writer

    async def _read(self, node: str) -> Object:
        try:
            return await self._service.send(Get(Key(NODE_KIND, "", node)))
        except NotFound as error:
            raise AgentUnreachable(
                f"node {node} is gone, and its pods with it: wait until they are replaced"
            ) from error

    def _address(self, name: str, node: Object) -> tuple[str, int]:
        status = node.as_view(NodeView).status
        host = next((each.address for each in status.addresses if each.type == "InternalIP"), "")
        port = status.daemon_endpoints.kubelet_endpoint.port
        if not host or not port:
            raise AgentUnreachable(
                f"the agent of node {name} has no endpoint for logs and exec: its kubeconfig needs the authority of "
                "this cluster (certificate-authority-data)"
            )
        return host, port


def is_agent_of(node: str, peer: Mapping[str, Any] | None) -> bool:
    """Whether a verified certificate, as `ssl` describes it, is that of a node's agent."""
    names = [pair for part in (peer or {}).get("subject", ()) for pair in part]
    return ("commonName", f"{NODE_USER_PREFIX}{node}") in names and ("organizationName", NODES) in names
