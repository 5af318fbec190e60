"""The port to the process runner: pull, start, stop, list, probe, measure. Drivers and processes outlive agents.

`agent.process` and the simulated driver implement it. The process list of a driver is the truth about a node: a
restarted agent knows nothing else. An event is only a hint to list again.
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
    """The identity of one process. A process is started only when all of it is known."""

    pod_uid: str
    container: str
    attempt: int
    """The restart count of the container: a process is started once for each."""
    bind_revision: Revision
    """The node's revision that the bind proved; 0 for a pod that was created with a node name."""
    node_uid: str
    """The incarnation of the node: a later incarnation gives its claims to other pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProcess:
    """One process as its driver lists it. It stays listed after its end until the agent forgets it."""

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
    """When it started or ended, on the node's monotonic clock, which agent and driver share."""


class Consumption(NamedTuple):
    """The resources that one process has used."""

    cpu_s: float
    """CPU seconds since it began, including its children."""
    memory_bytes: int | None = None
    """The memory it holds now; None if the driver cannot measure it."""


class PullFailed(OperatingError):
    """The image could not be fetched. Wait and try again; the pod's status shows it meanwhile."""


class CannotStart(OperatingError):
    """The container cannot be started as it is declared. Change it; the pod's status shows `waiting` meanwhile."""

    def __init__(self, message: str, waiting: str) -> None:
        super().__init__(message)
        self.waiting = waiting
        """The reason in the container's status."""


class Driver(Protocol):
    """Runs processes on one machine. Every method may be repeated."""

    async def pull(self, image: str) -> None:
        """Make an image ready to start.

        Raises:
            PullFailed: it failed. Try again later.
        """

    async def start(self, identity: Identity, pod: PodView, container: Container, *, keep_s: float | None) -> None:
        """Start a process. A process is started at most once for an identity.

        With `keep_s` the driver kills it by its own clock, unless `keep` is called within that time: an at-most-one pod
        must be stopped even when the agent is gone.

        Raises:
            CannotStart: the container is declared in a way that this driver cannot run.
        """

    async def keep(self, identity: Identity, for_s: float) -> None:
        """Let a process that was started with `keep_s` run for `for_s` from now."""

    async def stop(self, identity: Identity, *, grace_s: float) -> None:
        """Signal a process to end; kill it when the grace is over. Returns at once; a repeat can only shorten it."""

    async def processes(self) -> Sequence[ContainerProcess]:
        """Every process that was started and not forgotten, by any run of the agent."""

    async def forget(self, identity: Identity) -> None:
        """Stop listing a process that has ended."""

    async def probe(self, identity: Identity, probe: Probe) -> bool:
        """Whether the process passes; False too if it does not answer in time."""

    async def consumption(self) -> Mapping[Identity, Consumption]:
        """The consumption of each running process so far. Processes that cannot be measured are left out."""

    def address(self, pod_uid: str) -> str:
        """The IP address of the pod."""

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Call back with the pod's uid whenever one of its processes begins or ends. Replaces an earlier listener."""
