"""The client contract: the transport protocol, and the client that adds bounds, a breaker and retries to it."""

from kedge.client.contract.breaker import Breaker, BreakerState
from kedge.client.contract.client import Client
from kedge.client.contract.transport import Transport, WrappedTransport

__all__ = ["Breaker", "BreakerState", "Client", "Transport", "WrappedTransport"]
