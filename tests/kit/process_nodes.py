"""Drivers with real processes for tests, and evidence about what runs, read from `/proc` and from the files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from kedge.agent.core.config import Surroundings, container_setup
from kedge.agent.core.driver import ContainerProcess, Identity
from kedge.agent.process import ProcessDriver
from kedge.agent.process.services import ServiceProxies
from kedge.api.kinds import KINDS
from kedge.api.views import Container, PodView, decode_view
from kedge.keys import Key

POD = Identity("11111111-aaaa", "main", 0, 5, "node-uid")


def pod_of(*command: str, env: dict[str, str] | None = None) -> tuple[PodView, Container]:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": POD.pod_uid},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "x",
                    "command": list(command),
                    "ports": [{"name": "http", "containerPort": 18080}],
                    "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
                }
            ]
        },
    }
    view = decode_view(KINDS.of_key_kind("Pod"), msgspec.json.encode(body))
    assert isinstance(view, PodView)
    return view, view.spec.containers[0]


@asynccontextmanager
async def driver_in(folder: Path, *, services: ServiceProxies | None = None) -> AsyncIterator[ProcessDriver]:
    driver = ProcessDriver(folder, environment=os.environ, services=services)
    try:
        yield driver
    finally:
        await driver.shutdown(grace_s=0)
        await driver.close()


async def start(driver: ProcessDriver, *command: str, identity: Identity = POD, **more: float) -> None:
    await start_pod(driver, *pod_of(*command), identity=identity, keep_s=more.get("keep_s"))


async def start_pod(
    driver: ProcessDriver,
    pod: PodView,
    container: Container,
    *,
    identity: Identity = POD,
    keep_s: float | None = None,
    objects: dict[Key, dict[str, Any] | None] | None = None,
) -> None:
    """Start a container with its references resolved, as the agent does."""
    services = await driver.service_variables(pod)
    around = Surroundings(address=await driver.prepare(pod), services=services, objects=objects or {})
    await driver.start(identity, pod, container, container_setup(pod, container, around), keep_s=keep_s)


async def only(driver: ProcessDriver) -> ContainerProcess:
    (found,) = await driver.processes()
    return found


def ended(driver: ProcessDriver) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return not (await only(driver)).running

    return look


def log_of(folder: Path) -> str:
    return "".join(each.read_text() for each in sorted(folder.glob("pods/*/logs/main/*.log")))


def keeper_pids(folder: Path) -> list[int]:
    """Keepers, without children that one has just forked: these have its command line until they start a program."""
    parents = {}
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            line = (each / "cmdline").read_bytes() if each.name.isdigit() else b""
            if b"keeper.py" in line and str(folder).encode() in line:
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parent not in parents]


def keeper_pid(folder: Path) -> int:
    (found,) = keeper_pids(folder)
    return found


def alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def child_pid(folder: Path) -> int | None:
    texts = [each.read_text() for each in folder.glob("pods/*/work/child")]
    return int(texts[0]) if texts and texts[0] else None
