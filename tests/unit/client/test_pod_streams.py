"""The client's side of `pods/exec`: a command that ends before it has started."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from tests.kit.loops import on_loop
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from kedge.api.wellknown import EXEC_PROTOCOLS
from kedge.client.http.kubeconfig import ServerAddress
from kedge.client.http.pod_streams import open_exec

STATUS = {"status": "Failure", "message": "container main does not run"}


class RefusingServer:
    """Sends the answer to the handshake, the status of the command and the end in one piece."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = ServerProtocol(subprotocols=[Subprotocol(each) for each in EXEC_PROTOCOLS])
        request = None
        while request is None:
            protocol.receive_data(await reader.read(65536))
            request = next((each for each in protocol.events_received() if isinstance(each, Request)), None)
        protocol.send_response(protocol.accept(request))
        answer = b"".join(protocol.data_to_send())
        status = Frame(Opcode.BINARY, bytes([3]) + json.dumps(STATUS).encode()).serialize(mask=False)
        end = Frame(Opcode.CLOSE, Close(1000, "").serialize()).serialize(mask=False)
        writer.write(answer + status + end)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.ended.set()


@on_loop
async def test_frames_that_come_with_the_answer_to_the_handshake_are_read() -> None:
    refusing = RefusingServer()
    server = await asyncio.start_server(refusing, "127.0.0.1", 0)
    address = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1], None, "", "default")
    async with server:
        async with open_exec(address, "default", "web", [("command", "true")]) as socket:
            assert [(channel, json.loads(data)) async for channel, data in socket.messages()] == [(3, STATUS)]
        await refusing.ended.wait()
