"""`gather_ended`: the outcomes of tasks, in as many steps of the loop on every version of Python."""

from __future__ import annotations

import asyncio

import pytest

from kedge.tasks import gather_ended


async def _value(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _failure() -> int:
    raise ValueError("broken")


async def _wait_for_ever(cancelled: list[str]) -> int:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)  # its end takes a while
        cancelled.append("ended")
        raise
    return 0


def test_results_and_exceptions_come_in_the_order_of_the_tasks() -> None:
    async def body() -> None:
        first = asyncio.create_task(_value(1))
        await first
        stopped = asyncio.create_task(_wait_for_ever([]))
        stopped.cancel()
        outcomes = await gather_ended(first, _failure(), stopped, _value(2), first)
        assert outcomes[0] == outcomes[4] == 1
        assert isinstance(outcomes[1], ValueError)
        assert isinstance(outcomes[2], asyncio.CancelledError)
        assert outcomes[3] == 2
        assert await gather_ended() == []

    asyncio.run(body())


def test_a_cancelled_wait_cancels_the_tasks_and_ends_after_them() -> None:
    async def body() -> list[str]:
        ended: list[str] = []
        done = asyncio.create_task(_value(1))
        await done
        tasks = [asyncio.create_task(_wait_for_ever(ended)) for _ in range(2)]

        async def wait() -> None:
            await gather_ended(done, *tasks)

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert all(task.cancelled() for task in tasks)
        return ended

    assert asyncio.run(body()) == ["ended", "ended"]


def test_a_wait_that_is_over_cannot_be_cancelled() -> None:
    async def body() -> None:
        over = gather_ended(asyncio.create_task(_value(1)))
        assert await over == [1]
        assert not over.cancel()

    asyncio.run(body())


def test_tasks_that_have_ended_take_two_steps_of_the_loop() -> None:
    """As `asyncio.gather` takes on Python 3.11; on later versions it takes none."""

    async def body() -> int:
        loop = asyncio.get_running_loop()
        ended = [asyncio.create_task(_value(value)) for value in range(2)]
        await asyncio.wait(ended)
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            if steps < 10:
                loop.call_soon(step)

        loop.call_soon(step)
        await gather_ended(*ended)
        return steps

    assert asyncio.run(body()) == 2
