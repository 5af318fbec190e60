"""The records of an incident at every server of a cluster: listed, merged and fetched.

A process sends to the servers that it reaches, so its parts may be at several. If two servers have a part, the longer
one is taken: a sender that changes servers begins again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kedge.cli.incidents.incident_file import IncidentParts
from kedge.cli.progress import ProgressBar
from kedge.client.http import RestClient, ServerAddress, with_servers
from kedge.errors import NotFound, Unavailable
from kedge.server.http.incidents import INCIDENTS_PATH


class HeldPart(NamedTuple):
    """A part, and the server that has the most of it."""

    server: str
    bytes: int


@dataclass(slots=True)
class HeldProcess:
    done: bool = False
    parts: dict[str, HeldPart] = field(default_factory=dict)


@dataclass(slots=True)
class HeldRecords:
    """The records of one incident at the servers."""

    processes: dict[str, HeldProcess] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    """By server: why it did not answer."""

    def add(self, server: str, document: Mapping[str, Any]) -> None:
        """Add the records at one server."""
        for process in document["processes"]:
            held = self.processes.setdefault(process["name"], HeldProcess())
            held.done = held.done or process["done"]
            for part in process["parts"]:
                known = held.parts.get(part["name"])
                if known is None or part["bytes"] > known.bytes:
                    held.parts[part["name"]] = HeldPart(server, part["bytes"])

    @property
    def complete(self) -> bool:
        """Whether every process that takes part has sent everything."""
        return bool(self.processes) and all(each.done for each in self.processes.values())

    @property
    def bytes(self) -> int:
        return sum(part.bytes for each in self.processes.values() for part in each.parts.values())

    @property
    def gaps(self) -> list[str]:
        return [
            f"server {url} did not answer, so its records are missing: {why}" for url, why in self.unreachable.items()
        ]


class ServerSet:
    """The servers of a cluster, each asked on its own."""

    def __init__(self, clients: Mapping[str, RestClient]) -> None:
        self._clients = clients

    async def held(self, incident: str) -> HeldRecords:
        """The records at each server. One that does not answer is noted; one without the incident has nothing."""
        found = HeldRecords()
        for url, client in self._clients.items():
            try:
                found.add(url, await client.call("GET", f"{INCIDENTS_PATH}/{incident}"))
            except NotFound:
                continue
            except Unavailable as error:
                found.unreachable[url] = str(error)
        return found

    async def fetch(self, incident: str, held: HeldRecords, folder: Path) -> list[IncidentParts]:
        """Copy every part into a folder."""
        bar, got, total = ProgressBar("fetching records"), 0, max(1, held.bytes)
        made = []
        for name, process in sorted(held.processes.items()):
            parts = IncidentParts(name, process.done)
            for part_name, part in sorted(process.parts.items()):
                path = folder / name / part_name
                path.parent.mkdir(exist_ok=True)
                with path.open("wb") as file:
                    while file.tell() < part.bytes:
                        data = await self._clients[part.server].read(
                            "GET",
                            f"{INCIDENTS_PATH}/{incident}/{name}/{part_name}",
                            query={"at": str(file.tell())},
                            accept="*/*",
                        )
                        if not data:
                            break
                        file.write(data)
                        got += len(data)
                        bar(min(got, total), total)
                parts.files.append(path)
            made.append(parts)
        return made

    async def delete(self, incident: str) -> int:
        """Remove the records everywhere. Returns how many servers had some.

        Raises:
            Unavailable: a server does not answer. Repeat it later.
        """
        count = 0
        for client in self._clients.values():
            try:
                await client.call("DELETE", f"{INCIDENTS_PATH}/{incident}")
                count += 1
            except NotFound:
                continue
        return count


@asynccontextmanager
async def server_set(own: ServerAddress, urls: Sequence[str]) -> AsyncIterator[ServerSet]:
    """The server of the kubeconfig, and others of the same cluster.

    Raises:
        Terminal: an address is malformed.
    """
    addresses = {each.url: each for each in (own, *(with_servers(own, urls) if urls else ()))}
    clients = {url: RestClient(each, on_warning=lambda _: None) for url, each in addresses.items()}
    try:
        yield ServerSet(clients)
    finally:
        for each in clients.values():
            await each.close()
