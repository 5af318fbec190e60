"""The HTTPS endpoint of an agent: logs, exec and attach, for the API servers of its cluster and no other caller."""

from __future__ import annotations

from kedge.agent.process.endpoint.server import AgentEndpoint, EndpointAddress

__all__ = ["AgentEndpoint", "EndpointAddress"]
