"""asyncio works on a simulated loop, except for real I/O, which is refused by name."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kedge.sim.kernel import NO_FAULTS, Program, RealIORefused, Simulation, run


def result_of(program: Program, seed: int = 0) -> Any:
    outcome = run(program, seed, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation.detail or outcome.violation
    return outcome.result


def test_task_groups_timeouts_queues_locks_events_conditions_and_barriers_work() -> None:
    async def program(_: Simulation) -> list[str]:
        seen: list[str] = []
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock, event, condition = asyncio.Lock(), asyncio.Event(), asyncio.Condition()
        gate, barrier = asyncio.Semaphore(1), asyncio.Barrier(2)

        async def produce() -> None:
            for item in range(5):
                await queue.put(item)
            async with condition:
                condition.notify_all()

        async def consume() -> None:
            for _ in range(5):
                async with lock, gate:
                    seen.append(str(await queue.get()))
            event.set()

        async def wait() -> None:
            async with condition:
                await condition.wait()
            await event.wait()
            await barrier.wait()
            seen.append("met")

        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            group.create_task(consume())
            await asyncio.sleep(0)
            group.create_task(produce())
            await barrier.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3)
        return seen

    assert result_of(program) == ["0", "1", "2", "3", "4", "met"]


def test_virtual_time_jumps_and_a_year_costs_nothing() -> None:
    async def program(_: Simulation) -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await asyncio.sleep(9 * 3600)
        return loop.time() - begin

    assert result_of(program) == 9 * 3600


def test_gather_wait_as_completed_shield_and_cancellation_work() -> None:
    async def program(_: Simulation) -> list[object]:
        async def after(delay_s: float) -> float:
            await asyncio.sleep(delay_s)
            return delay_s

        gathered = await asyncio.gather(after(2), after(1))
        completed = [await first for first in asyncio.as_completed([after(3), after(1), after(2)])]
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(after(1)), asyncio.ensure_future(after(9))], return_when=asyncio.FIRST_COMPLETED
        )
        shielded = asyncio.ensure_future(asyncio.shield(asyncio.ensure_future(after(1))))
        shielded.cancel()
        victim = asyncio.ensure_future(after(100))
        await asyncio.sleep(0)
        victim.cancel("requested")
        with pytest.raises(asyncio.CancelledError):
            await victim
        return [gathered, completed, len(done), len(pending)]

    assert result_of(program) == [[2, 1], [1, 2, 3], 1, 1]


def test_an_abandoned_async_generator_is_closed_by_the_loop() -> None:
    async def program(_: Simulation) -> list[str]:
        seen: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(1)
                seen.append("closed")

        async for _number in numbers():
            break
        await asyncio.sleep(2)
        return seen

    assert result_of(program) == ["closed"]


def test_context_variables_follow_tasks_and_callbacks() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="unset")

    async def program(_: Simulation) -> list[str]:
        seen: list[str] = []
        name.set("outer")

        async def inner() -> None:
            seen.append(name.get())
            name.set("inner")
            asyncio.get_running_loop().call_soon(lambda: seen.append(name.get()))
            await asyncio.sleep(1)

        await asyncio.create_task(inner())
        seen.append(name.get())
        context = contextvars.copy_context()
        context.run(name.set, "given")
        await asyncio.create_task(inner(), context=context)
        seen.append(context.run(name.get))
        return seen

    assert result_of(program) == ["outer", "inner", "outer", "given", "inner", "inner"]


def test_executors_run_inline_and_their_errors_come_back() -> None:
    async def program(_: Simulation) -> int:
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        return await loop.run_in_executor(None, sum, [1, 2, 3])

    assert result_of(program) == 6


def test_a_cancelled_timer_does_not_move_time() -> None:
    async def program(sim: Simulation) -> float:
        asyncio.get_running_loop().call_later(500, lambda: None).cancel()
        async with asyncio.timeout(1000):
            await asyncio.sleep(1)
        return sim.now_s

    assert result_of(program) == 1


def test_an_exception_in_a_callback_is_a_violation_that_names_it() -> None:
    async def program(_: Simulation) -> None:
        def broken() -> None:
            raise ValueError("no")

        asyncio.get_running_loop().call_soon(broken)
        await asyncio.sleep(1)

    violation = run(program, 0).violation
    assert violation is not None
    assert violation.invariant == "no unhandled error"
    assert "broken" in violation.message
    assert "ValueError: no" in violation.message


def test_an_unretrieved_task_failure_is_a_violation() -> None:
    async def program(sim: Simulation) -> None:
        async def fails() -> None:
            raise ValueError("unseen")

        sim.host("a").env().spawn(fails(), name="background")
        await asyncio.sleep(1)

    violation = run(program, 0).violation
    assert violation is not None
    assert "task background failed: ValueError: unseen" in violation.message


def test_a_program_that_raises_system_exit_is_a_violation_and_does_not_end_the_interpreter() -> None:
    async def program(sim: Simulation) -> None:
        async def leave() -> None:
            sys.exit(3)

        await sim.host("a").run(leave())

    violation = run(program, 0).violation
    assert violation is not None
    assert "it left the interpreter: SystemExit: 3" in violation.message


def test_garbage_is_collected_at_fixed_steps_only() -> None:
    class Cycle:
        def __init__(self, ends: list[int]) -> None:
            self.me = self
            self.ends = ends

        def __del__(self) -> None:
            self.ends.append(1)

    async def program(_: Simulation) -> int:
        ends: list[int] = []
        for _number in range(20_000):
            Cycle(ends)
        await asyncio.sleep(1)
        return len(ends)

    assert gc.isenabled()
    assert result_of(program) == 0
    assert gc.isenabled()


def test_a_busy_wait_is_a_violation_not_an_endless_run() -> None:
    async def program(sim: Simulation) -> None:
        while sim.now_s < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)

    violation = run(program, 0).violation
    assert violation is not None
    assert "busy wait" in violation.message


def _start_thread() -> None:
    threading.Thread(target=print).start()


def _run_process() -> None:
    subprocess.run([sys.executable, "-V"], check=True)


@pytest.mark.parametrize(
    ("touch", "seam"),
    [
        (socket.socket, "create_connection"),
        (lambda: socket.getaddrinfo("localhost", 80), "create_connection"),
        (_start_thread, "env.spawn"),
        (_run_process, "process driver"),
        (lambda: asyncio.get_running_loop().add_signal_handler(2, print), "Host.crash"),
        (lambda: asyncio.get_running_loop().add_reader(0, print), "create_connection"),
        (lambda: asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol), "Host.send"),
        (lambda: asyncio.get_running_loop().subprocess_exec(asyncio.SubprocessProtocol, "x"), "process driver"),
    ],
)
def test_real_io_is_refused_with_an_error_that_names_the_alternative(touch: Callable[[], object], seam: str) -> None:
    async def program(_: Simulation) -> None:
        with pytest.raises(RealIORefused, match=seam):
            touch()

    result_of(program)


def test_tls_and_real_sockets_under_connections_are_refused() -> None:
    async def program(_: Simulation) -> None:
        with pytest.raises(RealIORefused, match="TLS"):
            await asyncio.open_connection("driver", 443, ssl=True)

    result_of(program)


def test_outside_a_simulation_real_io_is_allowed() -> None:
    result_of(_nothing)
    socket.socket().close()
    thread = threading.Thread(target=_noop)
    thread.start()
    thread.join()


async def _nothing(_: Simulation) -> None:
    await asyncio.sleep(0)


def _noop() -> None:
    return None


def test_a_simulation_refuses_to_run_inside_a_running_loop() -> None:
    async def outer() -> None:
        with pytest.raises(RuntimeError, match="inside a running event loop"):
            run(_nothing, 0)

    asyncio.run(outer())


def test_runs_leave_no_tasks_warnings_or_references_behind() -> None:
    async def program(sim: Simulation) -> None:
        async def stubborn() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1000)  # the first close of this coroutine fails

        for index in range(3):
            sim.host(f"h{index}").spawn(stubborn(), name="stubborn")
        await asyncio.sleep(1)
        sim.world.hosts["h1"].crash()

    before = {id(task) for task in registered_tasks()}  # of other tests, not collected yet
    kept = registered_tasks()  # so that no new task can have the id of an old one
    for seed in range(3):
        result_of(program, seed)
    assert not [task for task in registered_tasks() if id(task) not in before]
    assert len(kept) == len(before)


def registered_tasks() -> list[Any]:
    """Every task in asyncio's register, of any loop."""
    registered = getattr(asyncio.tasks, "_all_tasks", None)
    return list(getattr(asyncio.tasks, "_scheduled_tasks", ()) if registered is None else registered)
