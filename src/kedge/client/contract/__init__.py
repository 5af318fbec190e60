"""The client contract: what transports do, and what every one of them gets on top."""

from kedge.client.contract.breaker import Breaker, BreakerState
from kedge.client.contract.client import Client
from kedge.client.contract.transport import Transport

__all__ = ["Breaker", "BreakerState", "Client", "Transport"]
