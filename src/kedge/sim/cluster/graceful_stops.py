"""Graceful stops: a process that is asked to end, as SIGTERM does, finishes its work and releases its leases.

A crash ends a process between any two steps; `Host.crash` does that. The order here is that of the commands
`kedge controllers`, `kedge scheduler`, `kedge agent` and `kedge server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from kedge.errors import Unavailable
from kedge.sim.cluster.cluster import Cluster, ControlPlaneProcess
from kedge.sim.cluster.links import API
from kedge.sim.kernel import Host
from kedge.tasks import gather_ended

STOP_S = 10.0
"""Work that has not ended by then is cancelled, as in production."""
LOOK_S = 0.25


class StoppingService:
    """The service of a server that is stopping: it refuses every request. Requests under way go on."""

    def __getattr__(self, label: str) -> Callable[..., Awaitable[Any]]:
        if label.startswith("_"):
            raise AttributeError(label)
        return _refuse


async def _refuse(*_: object, **__: object) -> NoReturn:
    raise Unavailable("this server is stopping: use another one, or try again")


async def stop_gracefully(cluster: Cluster, host: Host) -> bool:
    """Stop the process on `host`, and wait for its end. The host is left idle: restart it.

    Returns False if it had crashed, or did so meanwhile.
    """
    if not host.up:
        return False
    process = host.process
    cluster.sim.note("stop", f"{host.name}, process {process.number}")
    stopping = host.spawn(_stop_for(cluster, host), name=f"stop {host.name}")
    deadline_s = cluster.sim.now_s + 2 * STOP_S

    def is_stopping() -> bool:
        return host.process is process and host.up and not stopping.done() and cluster.sim.now_s < deadline_s

    while is_stopping():  # noqa: ASYNC110  a crash sets no event
        await asyncio.sleep(LOOK_S)
    return host.process is process and host.up and stopping.done()


async def restart_gracefully(cluster: Cluster, host: Host, *, after_s: float) -> bool:
    """Stop the process on `host`, and start the next one `after_s` later. Returns whether the stop was graceful."""
    stopped = await stop_gracefully(cluster, host)
    process = host.process
    await asyncio.sleep(after_s)
    if stopped and host.process is process:
        host.restart()
    return stopped


def _stop_for(cluster: Cluster, host: Host) -> Any:
    if host in cluster.servers:
        return _stop_server(host)
    found = next((each for each in reversed(cluster.processes) if each.host is host and not each.ended), None)
    return _cancel(host) if found is None else _stop_components(host, found)


async def _stop_server(host: Host) -> None:
    host.serve(API, StoppingService())
    await asyncio.sleep(1.0)  # requests under way end
    await _cancel(host)


async def _stop_components(host: Host, process: ControlPlaneProcess) -> None:
    stops = [each.stop() for each in process.components if hasattr(each, "stop")]
    ends = [asyncio.ensure_future(each) for each in stops if each is not None]
    if ends:
        await asyncio.wait(ends, timeout=STOP_S)
    if host.boot_task is not None:
        await asyncio.wait([host.boot_task], timeout=STOP_S)
    await _cancel(host)
    await process.context.caches.stop()


async def _cancel(host: Host) -> None:
    """End the boot program. An agent has no other stop: its pods keep running."""
    if host.boot_task is not None:
        host.boot_task.cancel()
        await gather_ended(host.boot_task)
