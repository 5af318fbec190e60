"""The port to the process runner: pull, start, stop, list, probe, measure. Drivers and processes outlive agents.

`agent.process` and the simulated driver implement it. The process list of a driver is the truth about a node: a
restarted agent knows nothing else. An event is only a hint to list again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from kedge.api.views import Container, LifecycleHook, PodView, Probe, ResourceRequirements
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
    message: str = ""
    """Why it was stopped or could not run, and the text that it left for its status."""
    since_s: float = 0.0
    """When it started or ended, on the node's monotonic clock, which agent and driver share."""
    resources: ResourceRequirements | None = None
    """The resources that are applied to it; None if an older driver started it, which did not record them."""
    stopping: bool = False
    """A stop was requested."""


class VolumeFile(NamedTuple):
    """One file of a volume."""

    path: str
    """Relative to the volume."""
    data: bytes
    mode: int


class EmptyVolume(NamedTuple):
    """A folder that lives as long as the pod."""

    name: str
    in_memory: bool = False
    size_bytes: int | None = None
    """Its largest size; enforced in memory alone."""


class HostVolume(NamedTuple):
    """A path of the machine."""

    name: str
    path: str
    type: str = ""


class FileVolume(NamedTuple):
    """Files whose content is known: of ConfigMaps, Secrets and fields of the pod."""

    name: str
    files: tuple[VolumeFile, ...]


PodVolume = EmptyVolume | HostVolume | FileVolume


class ContainerMount(NamedTuple):
    volume: PodVolume
    path: str
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSetup:
    """A container with every reference resolved."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[ContainerMount, ...] = ()


class Consumption(NamedTuple):
    """The resources that one process has used."""

    cpu_s: float
    """CPU seconds since it began, including its children."""
    memory_bytes: int | None = None
    """The memory it holds now; None if the driver cannot measure it."""


class KeptPod(NamedTuple):
    uid: str
    namespace: str
    name: str


class NodeCondition(NamedTuple):
    """An ability of the machine, as a condition of its node."""

    type: str
    status: bool
    reason: str
    message: str


class PullFailed(OperatingError):
    """The image could not be fetched. Wait and try again; the pod's status shows it meanwhile."""


class CannotStart(OperatingError):
    """The container cannot be started as it is declared. Change it; the pod's status shows `waiting` meanwhile."""

    def __init__(self, message: str, waiting: str) -> None:
        super().__init__(message)
        self.waiting = waiting
        """The reason in the container's status."""


class CannotResize(OperatingError):
    """The resources could not be applied to the process, which keeps those that it has. Try again later."""


class Driver(Protocol):
    """Runs processes on one machine. Every method may be repeated."""

    async def pull(self, image: str) -> None:
        """Make an image ready to start.

        Raises:
            PullFailed: it failed. Try again later.
        """

    async def prepare(self, pod: PodView) -> str:
        """Make a place for a pod. Returns its IP address, which it has until it is removed."""

    async def service_variables(self, pod: PodView) -> Mapping[str, str]:
        """Environment variables with the addresses of Services, for the processes of a pod."""

    async def start(
        self, identity: Identity, pod: PodView, container: Container, setup: ContainerSetup, *, keep_s: float | None
    ) -> None:
        """Start a process. A process is started at most once for an identity.

        With `keep_s` the driver kills it by its own clock, unless `keep` is called within that time: an at-most-one pod
        must be stopped even when the agent is gone.

        Raises:
            CannotStart: the container is declared in a way that this driver cannot run.
        """

    async def update_volumes(self, pod: PodView, setup: ContainerSetup) -> None:
        """Bring the files of a running container's volumes up to date, all of a volume at once.

        A mount with a `subPath` keeps the file that it had when the container started.
        """

    async def resize(self, identity: Identity, container: Container) -> None:
        """Apply the resources of a container to its process, without a restart. One that has ended keeps its own.

        Raises:
            CannotResize: they cannot be applied now.
        """

    async def keep(self, identity: Identity, for_s: float) -> None:
        """Let a process that was started with `keep_s` run for `for_s` from now."""

    async def stop(self, identity: Identity, *, grace_s: float, cause: str = "") -> None:
        """Signal a process to end; kill it when the grace is over. Returns at once; a repeat can only shorten it.

        The first `cause` that is given begins the message of the ended process.
        """

    async def processes(self) -> Sequence[ContainerProcess]:
        """Every process that was started and not forgotten, by any run of the agent."""

    async def forget(self, identity: Identity) -> None:
        """Stop listing a process that has ended."""

    async def probe(self, identity: Identity, probe: Probe) -> str:
        """Probe a process. Returns why it does not pass; empty if it passes."""

    async def run_hook(self, identity: Identity, hook: LifecycleHook, *, within_s: float) -> str:
        """Run a lifecycle hook beside a process. Returns why it failed; empty if it succeeded."""

    async def remove(self, pod_uid: str) -> None:
        """Remove what is kept of a pod of which no process is listed: its logs, its volumes, its address."""

    async def kept_pods(self) -> Sequence[KeptPod]:
        """Every pod of which something is kept, by any run of the agent."""

    async def consumption(self) -> Mapping[Identity, Consumption]:
        """The consumption of each running process so far. Processes that cannot be measured are left out."""

    def address(self, pod_uid: str) -> str:
        """The IP address of the pod."""

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Call back with the pod's uid whenever one of its processes begins or ends. Replaces an earlier listener."""
