"""Services on one node: each has a loopback address, a proxy that follows its endpoints, and a name for processes."""

from __future__ import annotations

from kedge.agent.process.services.follower import ServiceProxies

__all__ = ["ServiceProxies"]
