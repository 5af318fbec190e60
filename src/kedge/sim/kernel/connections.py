"""Connections between hosts: `create_connection` and `create_server` over the simulated network.

Bytes arrive in order and once, or the connection breaks; a partition stalls them and then breaks it. Each piece passes
the fault point `bytes of HOST:PORT`. Built on `network`; streams and protocol classes run on it unchanged.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from kedge.errors import check
from kedge.sim.kernel.fault_registry import BYTES, FAULTS
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.lasting_faults import DELAYS_S
from kedge.sim.kernel.listening_port import SimServer
from kedge.sim.kernel.network import RETRANSMIT_S, STALL_S_MAX
from kedge.sim.kernel.real_io import RealIORefused
from kedge.sim.kernel.strands import HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

PIECE_FAULTS = FAULTS.kinds_at(BYTES)
CONNECT_S_MAX = 20.0
"""How long a connection attempt waits for a reply before it fails."""
BUFFER_BYTES_MAX = 64 * 1024
"""Bytes in flight past which a writer is paused."""
EPHEMERAL_PORT_FIRST = 49_152
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = (None, "", "0.0.0.0", "::")


class SimConnections:
    """The listening ports and open connections of one run."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._listening: dict[tuple[str, int], SimServer] = {}
        self._port = EPHEMERAL_PORT_FIRST - 1
        self._open: list[_End] = []
        world.on_crash.append(self._process_died)
        world.network.on_change.append(self._network_changed)

    def next_port(self) -> int:
        self._port += 1
        return self._port

    # -- listening

    def listen(self, factory: Callable[[], Any], host: Any, port: int | None, options: dict[str, Any]) -> SimServer:
        _refuse_unsupported(options)
        here = self._here()
        check(
            host in _ANY or host in _LOCAL or host == here.name or isinstance(host, list | tuple),
            f"{here.name} cannot listen on {host}: use its own name, or none",
        )
        port = port or self.next_port()
        if (here.name, port) in self._listening:
            raise OSError(errno.EADDRINUSE, f"{here.name}:{port} is already in use")
        server = SimServer(self, factory, here, port, self._context_here())
        if options.get("start_serving", True):
            self._listening[here.name, port] = server
        return server

    def open(self, server: SimServer) -> None:
        self._listening[server.host.name, server.port] = server

    def unlisten(self, server: SimServer) -> None:
        if self._listening.get((server.host.name, server.port)) is server:
            del self._listening[server.host.name, server.port]

    # -- connecting

    async def connect(
        self, factory: Callable[[], Any], host: str | None, port: int | None, options: dict[str, Any]
    ) -> tuple[asyncio.Transport, Any]:
        _refuse_unsupported(options)
        world, here = self._world, self._here()
        there = self._find(host)
        check(port, "create_connection needs a port")
        what = f"connection to {there.name}:{port}"
        answer: asyncio.Future[SimServer | None] = world.loop.create_future()
        client = _End(world, self, here, self._context_here(), f"{there.name}:{port}")

        def request_arrives(process: HostProcess) -> None:
            server = self._listening.get((there.name, port or 0))
            refused = server is None or not there.up or server.process is not process
            if not refused and server is not None:
                accepted = _End(world, self, there, server.context, f"{there.name}:{port}")
                accepted.peer, client.peer = client, accepted
                accepted.name_ends((here.name, self.next_port()), (there.name, port or 0), server=True)
                client.name_ends((there.name, port or 0), accepted.peer_name, server=False)
                world.loop.call_soon(accepted.start, server.factory, context=server.context)
            world.network.transmit(there, here, lambda _: answered(refused), what=what, resent=True)

        def answered(refused: bool) -> None:
            if answer.done():
                return
            if refused:
                answer.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, f"{there.name}:{port} refused"))
            else:
                answer.set_result(None)

        world.network.transmit(here, there, request_arrives, what=what, resent=True)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await answer
        except TimeoutError:
            client.abort_silently()
            raise TimeoutError(errno.ETIMEDOUT, f"{there.name}:{port} did not answer") from None
        protocol = client.start(factory)
        return client.transport, protocol

    def resolve(self, host: Any, port: Any) -> list[Any]:
        found = self._find(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found.name, int(port or 0)))]

    # -- open connections

    def opened(self, end: _End) -> None:
        self._open.append(end)

    def closed(self, end: _End) -> None:
        if end in self._open:
            self._open.remove(end)

    def accepted(self, server: SimServer) -> list[asyncio.Transport]:
        """The open connections of a listening port, oldest first."""
        return [end.transport for end in self._open if end.context is server.context]

    def _process_died(self, process: HostProcess) -> None:
        for end in [end for end in self._open if end.process is process]:
            end.die()
        for server in [server for server in self._listening.values() if server.process is process]:
            self.unlisten(server)

    def close(self) -> None:
        """Drop every connection: the run is over."""
        for end in self._open:
            end.forget()
        self._open.clear()

    def _network_changed(self) -> None:
        for end in list(self._open):
            end.network_changed()

    # --

    def _here(self) -> Host:
        host = self._world.current_host()
        check(host is not None, "only code on a host can use the network: start this with Host.spawn")
        assert host is not None
        return host

    def _context_here(self) -> Context:
        return copy_context()

    def _find(self, name: Any) -> Host:
        here = self._here()
        if name in _LOCAL or name in _ANY:
            return here
        host = self._world.hosts.get(name.decode() if isinstance(name, bytes) else str(name))
        if host is None:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no simulated host {name}")
        return host


def _refuse_unsupported(options: dict[str, Any]) -> None:
    if options.get("ssl"):
        raise RealIORefused("TLS on a simulated connection: use plain bytes here, and pass the TLS layer in as a port")
    if options.get("sock") is not None:
        raise RealIORefused("a real socket on a simulated loop: give a host and a port instead")


class _End:
    """One end of a connection: bytes on their way to it, and bytes that its protocol has not read."""

    def __init__(self, world: SimWorld, wires: SimConnections, host: Host, context: Context, address: str) -> None:
        self.world = world
        self.host = host
        self.process = host.process
        self.context = context
        self.address = address
        self.peer: _End | None = None
        self.peer_name: tuple[str, int] = ("", 0)
        self.transport = _PipeTransport(self)
        self._wires = wires
        self._started = False
        self._closing = False
        self._lost = False
        self._arrivals: deque[tuple[float, bytes | None]] = deque()
        """Pieces on their way here, in order, with the moment each is due. A piece never overtakes an earlier one. None
        is the end of the stream."""
        self._timer_set = False
        self._stalled_since: float | None = None
        self._unread: deque[bytes | None] = deque()
        self._reading = True
        self._under_way = 0
        """Bytes sent by this end that the protocol of its peer has not received."""
        self._writing_paused = False
        self._eof_sent = False

    def name_ends(self, peer: tuple[str, int], own: tuple[str, int], *, server: bool) -> None:
        self.peer_name = peer
        self.transport.extra.update(peername=peer, sockname=own, server_side=server)

    def start(self, factory: Callable[[], Any]) -> Any:
        """Create the protocol and call `connection_made`, before any byte that has already arrived."""
        protocol = factory()
        self.transport.set_protocol(protocol)
        self._wires.opened(self)
        self._started = True
        protocol.connection_made(self.transport)
        self._hand_over()
        return protocol

    # -- sending

    def send(self, data: bytes | None) -> None:
        peer, world = self.peer, self.world
        if self._lost or peer is None:
            return
        if peer._lost:
            peer._notify_peer_of_loss()  # a write to a closed connection is answered with a reset
            return
        source, target = self.host.name, peer.host.name
        network, draw = world.network, world.choices.network
        extra_s = 0.0
        if data is not None:
            fault = world.faults.at(f"bytes of {self.address}", f"{source}>{target}", PIECE_FAULTS)
            if fault == "reset":
                self.reset()
                return
            extra_s = world.faults.pick("long the delay is", DELAYS_S) if fault == "delay" else 0.0
        link = network.link(source, target)
        if draw.chance(f"loss {source}>{target}", link.loss):
            extra_s += RETRANSMIT_S
        due_s = world.loop.now + network.latency_s(source, target) + extra_s
        if data is not None:
            if link.bytes_per_s:
                due_s += len(data) / link.bytes_per_s
            self._under_way += len(data)
            self._pause_writer()
        peer._arrivals.append((due_s, data))
        peer._await_arrival()

    def _await_arrival(self) -> None:
        if not self._timer_set and self._arrivals and not self._lost:
            self._timer_set = True
            self.world.loop.call_at_moment(self._arrivals[0][0], self._arrive)

    def _arrive(self) -> None:
        """Receive the pieces that are due. While the link is cut they wait, up to a limit."""
        self._timer_set = False
        peer, now = self.peer, self.world.loop.now
        if self._lost or peer is None or not self._arrivals:
            return
        if self.world.network.is_cut(peer.host.name, self.host.name):
            if self._stalled_since is None:
                self._stalled_since = now
                self.world.loop.call_later(STALL_S_MAX, self._give_up, now, context=self.world.context)
            return
        self._stalled_since = None
        while self._arrivals and self._arrivals[0][0] <= now:
            self._unread.append(self._arrivals.popleft()[1])
        self.world.loop.call_soon(self._hand_over, context=self.context)
        self._await_arrival()

    def _give_up(self, since: float) -> None:
        if self._stalled_since == since and not self._lost:
            self.lose(TimeoutError(errno.ETIMEDOUT, f"{self.address}: nothing gets through"))
            if self.peer is not None:
                self.peer.lose(TimeoutError(errno.ETIMEDOUT, f"{self.address}: nothing gets through"))

    def network_changed(self) -> None:
        if self._stalled_since is not None:
            self._stalled_since = None
            self._await_arrival()

    # -- receiving, on the host of this end

    def _hand_over(self) -> None:
        protocol = self.transport.get_protocol()
        while self._unread and self._reading and self._started and not self._lost and not self._closing:
            data = self._unread.popleft()
            if data is None:
                keep_open = protocol.eof_received()
                if not keep_open:
                    self.close()
                return
            if self.peer is not None:
                self.peer.taken(len(data))
            if isinstance(protocol, asyncio.BufferedProtocol):
                _feed_buffered(protocol, data)
            else:
                protocol.data_received(data)

    def read(self, *, on: bool) -> None:
        self._reading = on
        if on and self._unread:
            self.world.loop.call_soon(self._hand_over, context=self.context)

    # -- flow control

    def _pause_writer(self) -> None:
        if self._under_way > self.transport.high and not self._writing_paused:
            self._writing_paused = True
            self.transport.get_protocol().pause_writing()

    def taken(self, count: int) -> None:
        """Count bytes that the protocol of the peer has received. Free and instant: flow control sends no message."""
        self._under_way -= count
        if self._writing_paused and self._under_way <= self.transport.low and not self._lost:
            self._writing_paused = False
            self.world.loop.call_soon(self.transport.get_protocol().resume_writing, context=self.context)

    def under_way(self) -> int:
        return self._under_way

    # -- ending

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def send_eof(self) -> None:
        if not self._eof_sent and not self._lost:
            self._eof_sent = True
            self.send(None)

    def close(self) -> None:
        """Close both directions after the bytes that were written have arrived."""
        if self.is_closing():
            return
        self._closing = True
        self.send_eof()
        self.world.loop.call_soon(self._lost_now, None, context=self.context)

    def reset(self) -> None:
        """Both ends lose the connection; bytes in flight are dropped."""
        self._notify_peer_of_loss()
        self.lose(_reset(self.address))

    def die(self) -> None:
        """End with the process of this end. The peer gets a reset; nothing runs at this end any more."""
        self._lost = True
        self._wires.closed(self)
        self._notify_peer_of_loss()

    def _notify_peer_of_loss(self) -> None:
        peer, world = self.peer, self.world
        if peer is not None:
            delay_s = world.network.loss_detection_s(self.host.name, peer.host.name)
            world.loop.call_later(delay_s, peer.lose, _reset(self.address), context=world.context)

    def forget(self) -> None:
        self._lost = True

    def abort_silently(self) -> None:
        self._lost = True
        if self.peer is not None:
            self.peer.lose(_reset(self.address))

    def lose(self, error: OSError) -> None:
        if not self._lost and not self._closing:
            self._closing = True
            self.world.loop.call_soon(self._lost_now, error, context=self.context)

    def _lost_now(self, error: OSError | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._wires.closed(self)
        if self._started:
            self.transport.get_protocol().connection_lost(error)


def _reset(address: str) -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, f"{address}: connection reset by peer")


def _feed_buffered(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = protocol.get_buffer(len(data))
        count = min(memoryview(buffer).nbytes, len(data))
        memoryview(buffer)[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


class _PipeTransport(asyncio.Transport):
    """The transport of an end, as protocols see it."""

    def __init__(self, end: _End) -> None:
        self.extra: dict[str, Any] = {}
        super().__init__(self.extra)
        self.extra = self._extra  # type: ignore[attr-defined]
        self._end = end
        self._protocol: Any = None
        self.high = BUFFER_BYTES_MAX
        self.low = BUFFER_BYTES_MAX // 4

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._end.is_closing() or not data:
            return
        self._end.send(bytes(data))

    def write_eof(self) -> None:
        self._end.send_eof()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._end.under_way()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.low, self.high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = BUFFER_BYTES_MAX if low is None else 4 * low
        self.high = high
        self.low = high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self._end._reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._end.read(on=False)

    def resume_reading(self) -> None:
        self._end.read(on=True)

    def is_closing(self) -> bool:
        return self._end.is_closing()

    def close(self) -> None:
        self._end.close()

    def abort(self) -> None:
        self._end.reset()
