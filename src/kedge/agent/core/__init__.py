"""The agent with its driver passed in: the same in production and in simulation."""

from kedge.agent.core.agent import Agent
from kedge.agent.core.driver import Consumption, Driver, Identity, Process, PullFailed
from kedge.agent.core.node import Machine

__all__ = ["Agent", "Consumption", "Driver", "Identity", "Machine", "Process", "PullFailed"]
