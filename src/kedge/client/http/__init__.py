"""The HTTP transport: the client contract over the wire, to kedge or to any server with Kubernetes' conventions.

A server that is not kedge has no fences and no operation ids: `HttpTransport.repeats_safely` is False there.
"""

from __future__ import annotations

from kedge.client.http.failover import FailoverTransport, with_servers
from kedge.client.http.kubeconfig import ServerAddress, read_kubeconfig
from kedge.client.http.rest import RestClient
from kedge.client.http.transport import HttpTransport

__all__ = ["FailoverTransport", "HttpTransport", "RestClient", "ServerAddress", "read_kubeconfig", "with_servers"]
