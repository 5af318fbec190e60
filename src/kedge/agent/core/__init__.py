"""The agent with its driver passed in: the same in production and in simulation."""

from kedge.agent.core.account_tokens import ApiAccess
from kedge.agent.core.agent import Agent
from kedge.agent.core.driver import (
    Consumption,
    ContainerProcess,
    ContainerSetup,
    Driver,
    Identity,
    KeptPod,
    NodeCondition,
    PullFailed,
)
from kedge.agent.core.node import Machine
from kedge.agent.core.pod_recheck import recheck_sync

__all__ = [
    "Agent",
    "ApiAccess",
    "Consumption",
    "ContainerProcess",
    "ContainerSetup",
    "Driver",
    "Identity",
    "KeptPod",
    "Machine",
    "NodeCondition",
    "PullFailed",
    "recheck_sync",
]
