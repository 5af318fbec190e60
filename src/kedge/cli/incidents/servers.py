"""Where a process sends its records for an incident: to an API server over HTTPS, or to its own server's folder."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any

from kedge.client.http import RestClient
from kedge.errors import Unavailable
from kedge.limits import Limits
from kedge.server.http.incidents import INCIDENTS_PATH, PART_TYPE
from kedge.server.incidents import IncidentFolder


class OwnIncidents:
    """The folder of the server in this process."""

    def __init__(self, folder: IncidentFolder) -> None:
        self.folder = folder

    async def begin(self, incident: str, process: str) -> bytes:
        self.folder.begin(incident, process)
        return self.folder.hiding_key(incident)

    async def append(self, incident: str, process: str, part: str, at: int, data: bytes) -> int:
        return self.folder.append(incident, process, part, at, data)

    async def end(self, incident: str, process: str) -> None:
        self.folder.end(incident, process)


class RemoteIncidents:
    """The first of some servers that answers.

    Records leave on the connections that the process works with. A connection of its own would need a handshake, in
    which the certificate of a young server is not yet valid for a process whose clock was stepped back.
    """

    def __init__(self, servers: Callable[[], Sequence[RestClient]], limits: Limits) -> None:
        """`servers` is called for each request: certificates are renewed, and servers change."""
        self._servers = servers
        self._limits = limits

    async def begin(self, incident: str, process: str) -> bytes:
        reply = await self._post(f"{INCIDENTS_PATH}/{incident}/{process}", {})
        return base64.b64decode(reply.get("hidingKey", ""))

    async def append(self, incident: str, process: str, part: str, at: int, data: bytes) -> int:
        reply = await self._post(f"{INCIDENTS_PATH}/{incident}/{process}/{part}", {"at": str(at)}, data)
        return int(reply["size"])

    async def end(self, incident: str, process: str) -> None:
        await self._post(f"{INCIDENTS_PATH}/{incident}/{process}", {"done": "true"})

    async def _post(self, path: str, query: dict[str, str], data: bytes = b"") -> Any:
        failure = Unavailable("no API server is known: check the kubeconfig")
        for server in self._servers():
            try:
                async with asyncio.timeout(self._limits.incident_reply_s):
                    return await server.call("POST", path, query=query, data=data, content_type=PART_TYPE.decode())
            except Unavailable as error:
                failure = error
            except TimeoutError:  # every call may be repeated, so the next server may get the same
                failure = Unavailable(
                    f"an API server did not answer {path} within {self._limits.incident_reply_s} s: it is sent again"
                )
        raise failure
