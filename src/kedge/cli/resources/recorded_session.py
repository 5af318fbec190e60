"""The session of a command on a moment of a recording: the API of that moment, served from memory to this process.

The objects are in a memory store, the service and the HTTP are those of a server, and the clock stands still at the
moment, so every verb that reads prints what it would have printed then. Nothing can be written.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.cli.recording_option import recording_with_moment
from kedge.cli.resources.session import ServerChoice, Session, command_sentences, run_session
from kedge.client.http import RestClient, ServerAddress
from kedge.env import Env, system_env
from kedge.errors import MethodNotAllowed, Unauthorized
from kedge.server.http.access import Authenticator
from kedge.server.http.agents import AgentDialer
from kedge.server.http.api import ApiHandler
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.plain_listener import PlainListener
from kedge.server.service import Service
from kedge.store.contract import RESTORE_BUMP, Entry
from kedge.store.memory import MemoryBackup, MemoryStore

if TYPE_CHECKING:
    from kedge.observe.readers.moments import Moment
    from kedge.observe.readers.recording import Recording

HOST: Final = "127.0.0.1"
_READER: Final = Caller("kedge:recording", (MASTERS, AUTHENTICATED))
_READS: Final = frozenset({"GET", "HEAD"})


class RecordingReader(Authenticator):
    """Lets the command that holds the token read, and no other program of this machine."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def caller(self, request: HttpRequest) -> Caller:
        if not hmac.compare_digest(request.headers.get(b"authorization", b""), self._expected):
            raise Unauthorized("this recording is read by another command: give it to your own with --recording")
        if request.method not in _READS:
            raise MethodNotAllowed("a recording cannot be changed: read it, or use a running cluster")
        return _READER


@asynccontextmanager
async def recorded_session(recording: Recording, moment: Moment, namespace: str) -> AsyncIterator[Session]:
    """A session whose server has the objects of that moment."""
    env = replace(system_env(), now=lambda: moment.at)
    token = env.secret_bytes(16).hex()
    handler = _handler(recording, moment, env, token)
    listener = PlainListener(handler, env, serves="a recording", option="address")
    address = ServerAddress(HOST, await listener.start(HOST, 0), token=token)
    rest = RestClient(address, on_warning=lambda _: None)
    try:
        yield Session(rest, namespace or address.namespace, address)
    finally:
        await rest.close()
        await listener.stop()


def _handler(recording: Recording, moment: Moment, env: Env, token: str) -> ApiHandler:
    from kedge.observe.readers.moments import objects_at

    entries = tuple(
        Entry(each.key, each.value, each.created, each.revision, each.origin)
        for each in objects_at(recording, moment.revision).values()
    )
    # A store that is restored begins with a revision of its own; this one is to be at that of the moment.
    store = MemoryStore(env, backup=MemoryBackup(entries, moment.revision - RESTORE_BUMP))
    service = Service(store, env)
    handler = ApiHandler(service, env, RecordingReader(token), AgentDialer(service, env, None))
    handler.ready = True
    return handler


def run_reading(
    choice: ServerChoice, recording: Path | None, at: str | None, work: Callable[[Session], Awaitable[Any]]
) -> Any:
    """Run the work of a command that only reads, on a moment of a recording or on a running cluster."""
    if recording is None:
        return run_session(choice, work)

    async def connected() -> Any:
        from kedge.observe.readers.moments import last_moment

        found, moment = recording_with_moment(recording, at)
        async with recorded_session(found, moment or last_moment(found), choice.namespace) as session:
            return await work(session)

    with command_sentences():
        return asyncio.run(connected())
