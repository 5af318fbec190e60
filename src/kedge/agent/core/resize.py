"""Resizes of a pod in place: whether its node allocates one, and which resources its containers have meanwhile.

The ledger decides: a resize is applied once the pod's claim is granted, and the write that reports its allocation is
what the service grants it by. Everything is read from the pod, its claim and the driver, so that an agent that starts
again continues at the same step. `decide` and `plan_resize` are pure; `pods` carries them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kedge.agent.core.driver import CannotResize, ContainerProcess, Driver
from kedge.api.views import Container, ContainerStatus, NodeView, PodView, ResourceRequirements
from kedge.api.wellknown import DEFERRED, INFEASIBLE
from kedge.metrics import Counter
from kedge.placement.admission import Rejection, admitted, first_rejection
from kedge.placement.ledger import ClaimState, Ledger
from kedge.placement.resources import CPU, MEMORY, node_allocatable, shortages, spec_requests

_RESTART = "RestartContainer"


class ResizeStage(StrEnum):
    """How far the node is with the resources in a pod's spec."""

    GRANTED = "Granted"
    """The pod's claim covers them: they are applied, or may be."""
    FITS = "Fits"
    """The node has room for them, and the report of their allocation is what grants them."""
    DEFERRED = DEFERRED
    """The node has no room for them now."""
    INFEASIBLE = INFEASIBLE
    """The node would have no room for them even without other pods."""


class Verdict(NamedTuple):
    stage: ResizeStage = ResizeStage.GRANTED
    message: str = ""
    rejection: Rejection | None = None
    """Why the node does not admit the pod: it was resized before its first report, and does not fit."""


@dataclass(frozen=True, slots=True)
class PodResize:
    """The resources of a pod's containers as they are, and the steps to those in its spec."""

    stage: ResizeStage = ResizeStage.GRANTED
    message: str = ""
    resources: Mapping[str, ResourceRequirements | None] = field(default_factory=dict)
    """By container: the resources that it has, or is started with. None if the driver does not know them."""
    apply: tuple[tuple[ContainerProcess, Container], ...] = ()
    """Processes to resize now, those that get less first."""
    restart: frozenset[str] = frozenset()
    """Containers whose process is replaced by one with the new resources."""

    @property
    def allocates(self) -> bool:
        """Whether the resources in the spec are those that the node has allocated."""
        return self.stage in (ResizeStage.GRANTED, ResizeStage.FITS)

    def is_applied(self, pod: PodView) -> bool:
        known = ((each, self.resources.get(each.name)) for each in containers_of(pod))
        return self.allocates and all(found is None or found == each.resources for each, found in known)


NO_RESIZE = PodResize()


def needs_decision(pod: PodView, processes: Sequence[ContainerProcess]) -> bool:
    """Whether the spec has other resources than the node has allocated and applied, or may have."""
    every = containers_of(pod)
    known = [_known(pod, processes, each) for each in every]
    if all(found is None for found in known):
        # Nothing was reported yet: the bind has proved the first generation, and perhaps not this one.
        return pod.metadata.generation > 1 and not processes
    if any(found is not None and found != each.resources for each, found in zip(every, known, strict=True)):
        return True
    reported = _by_name(pod)
    return any(
        (status := reported.get(each.name)) is not None
        and status.resources is not None
        and status.allocated_resources != each.resources.requests
        for each in every
    ) or (bool(pod.spec.resources.requests) and pod.status.allocated_resources != pod.spec.resources.requests)


def decide(pod: PodView, node: NodeView, ledger: Ledger) -> Verdict:
    """Whether a node allocates the resources in a pod's spec, on its committed state."""
    claim = ledger.claims.get(pod.uid)
    if claim is None or claim.state is not ClaimState.BOUND:
        return Verdict()  # it is disowned, or not admitted yet: neither is about a resize
    wanted, has = spec_requests(pod.spec), node_allocatable(node)
    more = {resource: amount for resource, amount in wanted.items() if amount > claim.proved.get(resource, 0)}
    if not more:
        return Verdict()
    proved = admitted(node, ledger.claims.items(), but=pod.uid)
    short = shortages(more, proved.allocated, has)
    if not short:
        return Verdict(ResizeStage.FITS)
    is_new = all(each.resources is None for each in _by_name(pod).values())
    never = [each for each in short if each in (CPU, MEMORY) and wanted[each] > has.get(each, 0)]
    name = (never or short)[0]
    message = (
        f"Node didn't have enough resource: {name}, requested: {wanted[name]},"
        f" used: {proved.allocated.get(name, 0)}, capacity: {has.get(name, 0)}"
    )
    return Verdict(
        ResizeStage.INFEASIBLE if never else ResizeStage.DEFERRED,
        message,
        first_rejection(pod, node, proved) if is_new else None,
    )


def plan_resize(pod: PodView, processes: Sequence[ContainerProcess], verdict: Verdict) -> PodResize:
    """The next steps of a resize. Containers that get more wait until those that get less have it.

    1. One container gives room to another. 2. The second grows. 3. The first cannot shrink yet. Without the order both
    would hold the room.
    """
    granted = verdict.stage is ResizeStage.GRANTED
    running = {each.name: _running(processes, each.name) for each in containers_of(pod)}
    pairs = [
        (process, each)
        for each in containers_of(pod)
        if (process := running[each.name]) is not None
        and process.resources is not None
        and process.resources != each.resources
    ]
    less = [pair for pair in pairs if not _grows(pair[0].resources, pair[1].resources)]
    ready = less or pairs
    resources: dict[str, ResourceRequirements | None] = {}
    for each in containers_of(pod):
        found = _known(pod, processes, each)
        waits = bool(less) and (found is None or _grows(found, each.resources))
        if running[each.name] is None and verdict.stage in (ResizeStage.GRANTED, ResizeStage.FITS):
            found = found if waits and found is not None else each.resources
        resources[each.name] = found
    return PodResize(
        stage=verdict.stage,
        message=verdict.message,
        resources=resources,
        apply=tuple(pair for pair in ready if granted and not _restarts(*pair)),
        restart=frozenset(each.name for process, each in ready if granted and _restarts(process, each)),
    )


def is_replaced(container: Container, process: ContainerProcess) -> bool:
    """Whether a process was stopped to be replaced by one with other resources."""
    return process.stopping and not process.running and _restarts(process, container)


def containers_of(pod: PodView) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _known(pod: PodView, processes: Sequence[ContainerProcess], container: Container) -> ResourceRequirements | None:
    """The resources that a container has, or had last."""
    own = [each for each in processes if each.identity.container == container.name]
    if own:
        return max(own, key=lambda each: each.identity.attempt).resources
    reported = _by_name(pod).get(container.name)
    return None if reported is None else reported.resources


def _running(processes: Sequence[ContainerProcess], container: str) -> ContainerProcess | None:
    return next((each for each in processes if each.running and each.identity.container == container), None)


def _grows(had: ResourceRequirements | None, now: ResourceRequirements) -> bool:
    """Whether any request is more than before."""
    if had is None:
        return True
    return any(name not in had.requests or amount > had.requests[name] for name, amount in now.requests.items())


def _restarts(process: ContainerProcess, container: Container) -> bool:
    """Whether the container's policies demand a restart for the change of its process's resources."""
    had, now = process.resources, container.resources
    if had is None:
        return False
    changed = {
        name
        for name in (CPU, MEMORY)
        if had.requests.get(name) != now.requests.get(name) or had.limits.get(name) != now.limits.get(name)
    }
    return any(each.resource_name in changed and each.restart_policy == _RESTART for each in container.resize_policy)


def _by_name(pod: PodView) -> dict[str, ContainerStatus]:
    return {each.name: each for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}


class PodResizer:
    """Decides and applies the resizes of one pod."""

    def __init__(
        self,
        driver: Driver,
        counter: Counter,
        committed: Callable[[], Awaitable[tuple[NodeView, Ledger]]],
    ) -> None:
        self._driver = driver
        self._counter = counter
        self._committed = committed
        """Reads the node and its ledger."""
        self.pending = False
        """The node has no room for a resize: room that is freed there may be enough for it."""

    async def observe(self, pod: PodView, processes: Sequence[ContainerProcess]) -> tuple[PodResize, Rejection | None]:
        """The pod's resize, by committed state; and why the node does not admit the pod, if it does not."""
        verdict = Verdict()
        if needs_decision(pod, processes):
            node, ledger = await self._committed()
            verdict = decide(pod, node, ledger)
        self.pending = verdict.stage in (ResizeStage.DEFERRED, ResizeStage.INFEASIBLE)
        return plan_resize(pod, processes, verdict), verdict.rejection

    async def apply(self, resize: PodResize) -> str:
        """Apply what can be applied without a restart. Returns why it could not; empty if it was."""
        for process, container in resize.apply:
            try:
                await self._driver.resize(process.identity, container)
            except CannotResize as error:
                self._counter.labels("failed").inc()
                return f"container {container.name}: {error.message}"
            self._counter.labels("applied").inc()
        return ""
