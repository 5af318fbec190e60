"""`create_connection`, `create_server` and asyncio's streams over the simulated network."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from kedge.sim.kernel import NO_FAULTS, Host, Latency, RunOutcome, Simulation, run
from kedge.sim.kernel.listening_port import SimServer


async def serve_echo(host: Host, *, port: int = 80) -> asyncio.AbstractServer:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    return await host.run(_start(echo, port))


async def _start(echo: object, port: int) -> asyncio.AbstractServer:
    return await asyncio.start_server(echo, None, port)  # type: ignore[arg-type]


async def ask(text: bytes, *, to: str = "server", port: int = 80) -> bytes:
    reader, writer = await asyncio.open_connection(to, port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def passes(outcome: RunOutcome) -> None:
    assert outcome.violation is None, outcome.violation.detail or outcome.violation


def test_streams_carry_bytes_in_order_over_a_link_with_uneven_latency() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        sim.network.set_link(server, client, latency=Latency.uniform(0.0, 1.0), loss=0.2)
        await serve_echo(server)

        async def work() -> bytes:
            reader, writer = await asyncio.open_connection("server", 80)
            for number in range(50):
                writer.write(b"%d," % number)
                await asyncio.sleep(0.01)
            writer.write_eof()
            try:
                return await reader.read()
            finally:
                writer.close()

        got = await client.run(work())
        assert got == b"".join(b"%d," % number for number in range(50))

    for seed in range(20):
        passes(run(program, seed, faults=NO_FAULTS))


def test_a_large_transfer_pauses_the_writer_while_the_reader_is_slow() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        buffered = 0

        async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            total = 0
            while data := await reader.read(4096):
                total += len(data)
                await asyncio.sleep(0.01)
            writer.write(str(total).encode())
            writer.close()

        await server.run(_start(slow_reader, 80))

        async def work() -> bytes:
            nonlocal buffered
            reader, writer = await asyncio.open_connection("server", 80)
            for _ in range(100):
                writer.write(b"x" * 10_000)
                buffered = max(buffered, writer.transport.get_write_buffer_size())
                await writer.drain()
            writer.write_eof()
            try:
                return await reader.read()
            finally:
                writer.close()

        assert await client.run(work()) == b"1000000"
        assert buffered <= 64 * 1024 + 10_000

    passes(run(program, 1, faults=NO_FAULTS))


def test_bytes_never_overtake_connection_made() -> None:
    class Recorder(asyncio.Protocol):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002
            self.calls.append("made")

        def data_received(self, data: bytes) -> None:  # noqa: ARG002
            self.calls.append("data")

        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
            self.calls.append("lost")

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.write(b"hello")  # type: ignore[attr-defined]
            transport.close()

    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        sim.network.set_link(server, client, latency=Latency.uniform(0.0, 0.1))

        async def listen() -> None:
            await asyncio.get_running_loop().create_server(Greeter, None, 80)

        await server.run(listen())

        async def work() -> list[str]:
            _, protocol = await asyncio.get_running_loop().create_connection(Recorder, "server", 80)
            await asyncio.sleep(1)
            return protocol.calls

        assert await client.run(work()) == ["made", "data", "lost"]

    for seed in range(30):
        passes(run(program, seed, faults=NO_FAULTS))


def test_a_closed_port_refuses_and_an_unknown_host_is_not_found() -> None:
    async def program(sim: Simulation) -> None:
        sim.host("server")
        client = sim.host("client")
        with pytest.raises(ConnectionRefusedError):
            await client.run(ask(b"x"))
        with pytest.raises(OSError, match="there is no simulated host nowhere"):
            await client.run(ask(b"x", to="nowhere"))

    passes(run(program, 1, faults=NO_FAULTS))


def test_the_peer_of_a_crashed_host_sees_a_reset() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        await serve_echo(server)

        async def work() -> None:
            reader, writer = await asyncio.open_connection("server", 80)
            sim.faults.at_time(sim.now_s + 1, server.crash)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

        await client.run(work())

    passes(run(program, 1, faults=NO_FAULTS))


def test_a_short_partition_stalls_a_connection_and_a_long_one_breaks_it() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        await serve_echo(server)

        async def work(cut_s: float) -> bytes:
            reader, writer = await asyncio.open_connection("server", 80)
            partition = sim.network.partition([client], [server])
            sim.faults.at_time(sim.now_s + cut_s, partition.heal)
            writer.write(b"hello")
            writer.write_eof()
            try:
                return await reader.read()
            finally:
                writer.close()

        started = sim.now_s
        assert await client.run(work(5.0)) == b"hello"
        assert sim.now_s - started >= 5.0
        with pytest.raises(TimeoutError) as error:
            await client.run(work(120.0))
        assert error.value.errno == errno.ETIMEDOUT

    passes(run(program, 1, faults=NO_FAULTS))


def test_echo_survives_every_seed_with_connection_faults() -> None:
    async def program(sim: Simulation) -> None:
        server = sim.host("server")
        await serve_echo(server)

        async def work(text: bytes) -> None:
            for _ in range(5):
                try:
                    assert await ask(text) == text
                except OSError as error:
                    sim.note("refused", str(error))

        hosts = [sim.host(f"client-{i}") for i in range(3)]
        await asyncio.gather(*[host.run(work(host.name.encode())) for host in hosts])

    outcomes = [run(program, seed) for seed in range(60)]
    assert not [str(outcome.violation) for outcome in outcomes if outcome.violation is not None]
    assert any(event.text.startswith("reset:") for outcome in outcomes for event in outcome.faults)
    for outcome in outcomes[:10]:
        assert run(program, outcome.tape).hash == outcome.hash


@pytest.mark.parametrize("end", [SimServer.close_clients, SimServer.abort_clients])
def test_a_server_ends_the_connections_of_its_own_port(end: Callable[[SimServer], None]) -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        first = await serve_echo(server)
        await serve_echo(server, port=81)
        assert isinstance(first, SimServer)

        async def end_clients() -> None:
            end(first)

        async def work() -> None:
            (reader, writer), (other, other_writer) = [
                await asyncio.open_connection("server", port) for port in (80, 81)
            ]
            await asyncio.sleep(1)
            await server.run(end_clients())
            with suppress(ConnectionResetError):  # after an abort
                assert await reader.read() == b""
            writer.close()
            other_writer.write(b"still open")
            assert await other.readexactly(10) == b"still open"
            other_writer.close()

        await client.run(work())

    passes(run(program, 1, faults=NO_FAULTS))
