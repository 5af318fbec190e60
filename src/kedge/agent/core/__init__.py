"""The agent with its driver passed in: the same in production and in simulation."""

from kedge.agent.core.agent import Agent
from kedge.agent.core.driver import Consumption, ContainerProcess, Driver, Identity, PullFailed
from kedge.agent.core.node import Machine

__all__ = ["Agent", "Consumption", "ContainerProcess", "Driver", "Identity", "Machine", "PullFailed"]
