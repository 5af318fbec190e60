"""The contract of a driver as checks: `check_driver` runs them on any implementation, real or simulated.

A subject makes pods with a known behaviour for its driver, and replaces the driver as a crash of the agent would. The
checks wait by `asyncio.sleep`, so that they run in virtual time too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

import msgspec

from kedge.agent.core.driver import ContainerProcess, ContainerSetup, Driver, Identity
from kedge.api.quantity import Quantity
from kedge.api.views import Container, LifecycleHook, PodView, Probe, ResourceList, ResourceRequirements
from kedge.api.views.probes import ExecAction
from kedge.errors import check

WAIT_S = 30.0
"""A change that takes longer does not come."""
_POLL_S = 0.05
_NODE = "node-uid-1"


class Behaviour(Enum):
    """How every container of a pod behaves."""

    RUNS = "runs until it is stopped"
    ENDS_WITH_3 = "ends at once, with exit code 3"
    IGNORES_SIGTERM = "runs, and ignores SIGTERM"


class DriverSubject(Protocol):
    """One machine with a driver."""

    @property
    def driver(self) -> Driver:
        """The current driver."""

    def pod(self, uid: str, behaviour: Behaviour, containers: int = 1) -> PodView:
        """A pod whose containers, named c0, c1 and so on, behave so on this driver."""

    async def replace_driver(self) -> None:
        """Lose the driver object as a killed agent does, and set `driver` to a new one of the same machine."""


CheckedBehaviour = Callable[[DriverSubject], Awaitable[None]]


def check_names() -> tuple[str, ...]:
    return tuple(_CHECKS)


async def check_driver(subject: DriverSubject, name: str) -> None:
    """Run one check on a subject that was made for it.

    Raises:
        InvariantBroken: the driver breaks the contract; the message states how.
    """
    await _CHECKS[name](subject)


# -- steps -------------------------------------------------------------------------------------------


async def _start(
    subject: DriverSubject, pod: PodView, *, attempt: int = 0, revision: int = 7, node: str = _NODE,
    container: int = 0, keep_s: float | None = None,
) -> Identity:  # fmt: skip
    chosen: Container = pod.spec.containers[container]
    identity = Identity(pod.uid, chosen.name, attempt, revision, node)
    await subject.driver.pull(chosen.image)
    await subject.driver.prepare(pod)
    setup = ContainerSetup(argv=(*chosen.command, *chosen.args), env={"POD_NAME": pod.name})
    await subject.driver.start(identity, pod, chosen, setup, keep_s=keep_s)
    return identity


async def _find(subject: DriverSubject, identity: Identity) -> ContainerProcess | None:
    found = [each for each in await subject.driver.processes() if each.identity == identity]
    check(len(found) <= 1, f"{identity} is listed {len(found)} times")
    return found[0] if found else None


async def _until_ended(subject: DriverSubject, identity: Identity) -> ContainerProcess:
    for _ in range(round(WAIT_S / _POLL_S)):
        found = await _find(subject, identity)
        check(found is not None, f"{identity} is no longer listed, and was not forgotten")
        if found is not None and not found.running:
            check(found.ended_at is not None, "a process that ended has no time of its end")
            return found
        await asyncio.sleep(_POLL_S)
    raise AssertionError(f"{identity} did not end within {WAIT_S:.0f} s")


async def _is_running(subject: DriverSubject, identity: Identity) -> bool:
    found = await _find(subject, identity)
    return found is not None and found.running


# -- checks ------------------------------------------------------------------------------------------


async def one_identity_is_started_once(subject: DriverSubject) -> None:
    pod = subject.pod("uid-once", Behaviour.ENDS_WITH_3)
    identity = await _start(subject, pod)
    await _start(subject, pod)
    first = await _until_ended(subject, identity)
    await _start(subject, pod)
    again = await _find(subject, identity)
    check(again == first, f"a repeated start changed {first} to {again}")


async def each_part_of_an_identity_makes_another_process(subject: DriverSubject) -> None:
    pod = subject.pod("uid-parts", Behaviour.RUNS)
    started = {
        await _start(subject, pod),
        await _start(subject, pod, attempt=1),
        await _start(subject, pod, revision=8),
        await _start(subject, pod, node="node-uid-2"),
    }
    listed = {each.identity for each in await subject.driver.processes()}
    check(listed == started and len(started) == 4, f"{started} were started and {listed} are listed")


async def exit_codes_and_times_are_reported(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-code", Behaviour.ENDS_WITH_3))
    ended = await _until_ended(subject, identity)
    check(ended.exit_code == 3, f"the exit code is {ended.exit_code}, not 3")
    check(ended.ended_at is not None and ended.ended_at >= ended.started_at, "it ended before it started")


async def a_stop_ends_a_process_within_its_grace(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-stop", Behaviour.RUNS))
    check(await _is_running(subject, identity), "it does not run after its start")
    await subject.driver.stop(identity, grace_s=20.0)
    ended = await _until_ended(subject, identity)
    check(ended.exit_code != 137, "it was killed, though SIGTERM is enough")
    await subject.driver.stop(identity, grace_s=0.0)
    check(await _find(subject, identity) == ended, "a stop of an ended process changed it")


async def a_process_that_ignores_sigterm_is_killed_after_its_grace(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-kill", Behaviour.IGNORES_SIGTERM))
    await asyncio.sleep(0.5)  # it must have got so far that it ignores the signal
    await subject.driver.stop(identity, grace_s=1.0)
    await asyncio.sleep(0.2)
    check(await _is_running(subject, identity), "it ended before its grace was over")
    check((await _until_ended(subject, identity)).exit_code == 137, "the exit code of SIGKILL is 137")


async def a_repeated_stop_can_only_shorten_the_grace(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-shorter", Behaviour.IGNORES_SIGTERM))
    await asyncio.sleep(0.5)
    await subject.driver.stop(identity, grace_s=600.0)
    await subject.driver.stop(identity, grace_s=0.5)
    await subject.driver.stop(identity, grace_s=600.0)
    await _until_ended(subject, identity)


async def a_process_that_is_not_kept_is_killed_by_the_driver(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-keep", Behaviour.RUNS), keep_s=1.0)
    await subject.driver.keep(identity, 2.0)
    await asyncio.sleep(1.2)
    check(await _is_running(subject, identity), "it was killed though its time was extended")
    await _until_ended(subject, identity)


async def a_new_driver_finds_every_process(subject: DriverSubject) -> None:
    running = await _start(subject, subject.pod("uid-adopt", Behaviour.RUNS))
    ended = await _start(subject, subject.pod("uid-ended", Behaviour.ENDS_WITH_3))
    last = await _until_ended(subject, ended)
    address = subject.driver.address("uid-adopt")
    await subject.replace_driver()
    check(await _find(subject, ended) == last, "the end of a process is lost with the driver")
    check(await _is_running(subject, running), "a process is lost with the driver")
    await _start(subject, subject.pod("uid-adopt", Behaviour.RUNS))
    check(len(await subject.driver.processes()) == 2, "a process was started twice after the driver was replaced")
    check(subject.driver.address("uid-adopt") == address, "the pod has another address")
    await subject.driver.stop(running, grace_s=0.0)
    await _until_ended(subject, running)


async def a_resize_stays_with_its_process(subject: DriverSubject) -> None:
    pod = subject.pod("uid-resize", Behaviour.RUNS)
    identity = await _start(subject, pod)
    found = await _find(subject, identity)
    container = pod.spec.containers[0]
    check(found is not None and found.resources == container.resources, "a process has not the resources of its start")
    larger = ResourceRequirements(
        requests=ResourceList({"cpu": Quantity(10**9), "memory": Quantity(2**28 * 10**9, "BinarySI")}),
        limits=ResourceList({"cpu": Quantity(2 * 10**9), "memory": Quantity(2**30 * 10**9, "BinarySI")}),
    )
    wanted = msgspec.structs.replace(container, resources=larger)
    await subject.driver.resize(identity, wanted)
    await subject.driver.resize(identity, wanted)
    await subject.replace_driver()
    found = await _find(subject, identity)
    check(found is not None and found.running and found.resources == larger, "a resize was lost, or ended its process")
    await subject.driver.stop(identity, grace_s=0)
    ended = await _until_ended(subject, identity)
    check(ended.stopping, "a process that was stopped does not show it")
    await subject.driver.resize(identity, container)
    found = await _find(subject, identity)
    check(found is not None and found.resources == larger, "a process that has ended was resized")


async def only_ended_processes_are_forgotten(subject: DriverSubject) -> None:
    running = await _start(subject, subject.pod("uid-forget", Behaviour.RUNS))
    await subject.driver.forget(running)
    check(await _is_running(subject, running), "a process that runs was forgotten")
    await subject.driver.stop(running, grace_s=0.0)
    await _until_ended(subject, running)
    for _ in range(2):
        await subject.driver.forget(running)
        check(await _find(subject, running) is None, "a process that ended was not forgotten")


async def containers_of_one_pod_are_processes_of_their_own(subject: DriverSubject) -> None:
    pod = subject.pod("uid-several", Behaviour.RUNS, containers=2)
    first, second = await _start(subject, pod), await _start(subject, pod, container=1)
    await subject.driver.stop(first, grace_s=0.0)
    await _until_ended(subject, first)
    check(await _is_running(subject, second), "a container ended with another one of its pod")


async def the_cause_of_the_first_stop_is_in_the_message_of_the_process(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-cause", Behaviour.RUNS))
    await subject.driver.stop(identity, grace_s=20.0, cause="a probe failed")
    await subject.driver.stop(identity, grace_s=0.0)
    await _until_ended(subject, identity)
    found = next(each for each in await subject.driver.processes() if each.identity == identity)
    check(found.message.startswith("a probe failed"), f"the message of the stopped process is {found.message!r}")


async def probes_and_hooks_fail_for_a_process_that_does_not_run(subject: DriverSubject) -> None:
    pod = subject.pod("uid-probe", Behaviour.RUNS)
    identity = await _start(subject, pod)
    probe, hook = Probe(exec=ExecAction(command=("true",))), LifecycleHook(exec=ExecAction(command=("true",)))
    check(not await subject.driver.probe(identity, probe), "a probe that succeeds is reported as failed")
    check(not await subject.driver.run_hook(identity, hook, within_s=10), "a hook that succeeds is reported as failed")
    await subject.driver.stop(identity, grace_s=0.0)
    await _until_ended(subject, identity)
    check(await subject.driver.probe(identity, probe) != "", "a process that ended passes its probe")
    check(await subject.driver.run_hook(identity, hook, within_s=10) != "", "a hook ran beside a process that ended")


async def a_listener_is_notified_of_the_end_of_a_process(subject: DriverSubject) -> None:
    notified: list[str] = []
    subject.driver.listen(notified.append)
    identity = await _start(subject, subject.pod("uid-listen", Behaviour.RUNS))
    await subject.driver.stop(identity, grace_s=0.0)
    await _until_ended(subject, identity)
    await asyncio.sleep(0.5)
    check("uid-listen" in notified, f"the listener was called with {notified}")


async def a_pod_is_kept_until_it_is_removed(subject: DriverSubject) -> None:
    identity = await _start(subject, subject.pod("uid-kept", Behaviour.ENDS_WITH_3))
    await _until_ended(subject, identity)
    await subject.driver.remove("uid-kept")
    check(await _kept(subject) == ["uid-kept"], "a pod with a listed process was removed")
    await subject.driver.forget(identity)
    await subject.replace_driver()
    check(await _kept(subject) == ["uid-kept"], "a pod was lost before it was removed")
    for _ in range(2):
        await subject.driver.remove("uid-kept")
        check(await _kept(subject) == [], "a pod is kept after it was removed")


async def _kept(subject: DriverSubject) -> list[str]:
    return [each.uid for each in await subject.driver.kept_pods()]


_CHECKS: dict[str, CheckedBehaviour] = {
    each.__name__: each
    for each in (
        one_identity_is_started_once,
        each_part_of_an_identity_makes_another_process,
        exit_codes_and_times_are_reported,
        a_stop_ends_a_process_within_its_grace,
        a_process_that_ignores_sigterm_is_killed_after_its_grace,
        a_repeated_stop_can_only_shorten_the_grace,
        a_process_that_is_not_kept_is_killed_by_the_driver,
        a_new_driver_finds_every_process,
        a_resize_stays_with_its_process,
        only_ended_processes_are_forgotten,
        containers_of_one_pod_are_processes_of_their_own,
        the_cause_of_the_first_stop_is_in_the_message_of_the_process,
        probes_and_hooks_fail_for_a_process_that_does_not_run,
        a_listener_is_notified_of_the_end_of_a_process,
        a_pod_is_kept_until_it_is_removed,
    )
}
