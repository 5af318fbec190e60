"""A machine for tests in real time: it implements the agent's port, and its processes are entries in a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kedge.agent.core import Consumption, ContainerProcess, Identity
from kedge.api.views import Container, PodView, Probe


class TableDriver:
    """Whatever is started runs at once, until it is stopped or its command is `true`."""

    def __init__(self) -> None:
        self._table: dict[Identity, ContainerProcess] = {}
        self._listener: Callable[[str], None] = lambda _: None
        self.cores = 0.0
        """What each process keeps busy."""

    async def pull(self, image: str) -> None:
        del image

    async def start(self, identity: Identity, pod: PodView, container: Container, *, keep_s: float | None) -> None:
        del keep_s
        ends = tuple(container.command) == ("true",)
        if identity not in self._table:
            now = datetime.now(UTC)
            self._table[identity] = ContainerProcess(
                identity=identity,
                namespace=pod.namespace,
                pod=pod.name,
                running=not ends,
                started_at=now,
                ended_at=now if ends else None,
                since_s=time.monotonic(),
            )
            self._listener(identity.pod_uid)

    async def keep(self, identity: Identity, for_s: float) -> None:
        del identity, for_s

    async def stop(self, identity: Identity, *, grace_s: float) -> None:
        del grace_s
        process = self._table.get(identity)
        if process is not None and process.running:
            self._table[identity] = replace(process, running=False, ended_at=datetime.now(UTC))
            self._listener(identity.pod_uid)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(self._table.values())

    async def forget(self, identity: Identity) -> None:
        self._table.pop(identity, None)

    async def probe(self, identity: Identity, probe: Probe) -> bool:
        del probe
        return identity in self._table and self._table[identity].running

    async def consumption(self) -> Mapping[Identity, Consumption]:
        now_s = time.monotonic()
        return {
            identity: Consumption(self.cores * (now_s - process.since_s))
            for identity, process in self._table.items()
            if process.running
        }

    def address(self, pod_uid: str) -> str:
        return f"10.0.0.{int(pod_uid[:2], 16) or 1}"

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._listener = on_change
