"""Real processes: the driver of an agent on Linux, and the keeper that outlives it.

`keeper` is a program of its own that holds the processes of one node; `driver` implements the agent's port on top of
it. An agent may be killed, upgraded and restarted: it finds its processes where it left them.
"""

from __future__ import annotations

from kedge.agent.process.driver import ProcessDriver

__all__ = ["ProcessDriver"]
