"""The port to whatever runs processes: pull, start, stop, list, probe, measure. Drivers and processes outlive agents.

`agent.process` and the simulated driver implement it. What a driver lists is the truth about a node: an agent that was
restarted knows nothing else. An event only says that something is worth a look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from kedge.api.views import Container, PodView, Probe
from kedge.errors import OperatingError
from kedge.keys import Revision


class Identity(NamedTuple):
    """What one process was started for. Nothing is ever started for less than all of it."""

    pod_uid: str
    container: str
    attempt: int
    """The restart count of the container: a process is started once for each."""
    bind_revision: Revision
    """The node's revision that the bind proved; 0 for a pod that was born on its node."""
    node_uid: str
    """The incarnation of the node: its claims are the next incarnation's to give away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProcess:
    """One process as its driver knows it. Kept after its end until the agent lets go of it."""

    identity: Identity
    namespace: str
    pod: str
    running: bool
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int = 0
    reason: str = ""
    """Why it ended, in one word, where the driver knows better than the exit code."""
    since_s: float = 0.0
    """Since when it is as it is, on the node's monotonic clock, which agent and driver share."""


class Consumption(NamedTuple):
    """What one process has taken of its machine."""

    cpu_s: float
    """Processor seconds since it began, its children's included."""
    memory_bytes: int | None = None
    """What it holds now; None if the driver cannot tell."""


class PullFailed(OperatingError):
    """The image could not be fetched. Wait and try again; the pod's status says so meanwhile."""


class Driver(Protocol):
    """Runs processes on one machine. Every method may be repeated."""

    async def pull(self, image: str) -> None:
        """Make an image ready to start.

        Raises:
            PullFailed: not this time.
        """

    async def start(self, identity: Identity, pod: PodView, container: Container, *, keep_s: float | None) -> None:
        """Start a process. One that was ever started for this identity is not started again.

        With `keep_s` the driver kills it by its own clock, unless `keep` is called within so long: whoever asks for
        at-most-one must be stopped even when the agent itself is gone.
        """

    async def keep(self, identity: Identity, for_s: float) -> None:
        """Let a process that was started with `keep_s` live so much longer, from now."""

    async def stop(self, identity: Identity, *, grace_s: float) -> None:
        """Ask a process to end, and kill it when the grace is over. Returns at once; a repeat may only hurry it."""

    async def processes(self) -> Sequence[ContainerProcess]:
        """Every process that was started and not let go of, whoever started it."""

    async def forget(self, identity: Identity) -> None:
        """Let go of a process that has ended."""

    async def probe(self, identity: Identity, probe: Probe) -> bool:
        """Whether the process passes; False too if it does not answer in time."""

    async def consumption(self) -> Mapping[Identity, Consumption]:
        """What each running process has taken so far. One that cannot be measured is left out."""

    def address(self, pod_uid: str) -> str:
        """Where the pod's processes are reached."""

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Call back with the pod's uid whenever one of its processes begins or ends. The last listener counts."""
