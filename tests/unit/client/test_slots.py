"""The bound on requests in flight."""

from __future__ import annotations

import asyncio
import random

from kedge.client.contract.slots import Slots


def test_at_most_the_limit_of_slots_is_taken_and_a_free_one_needs_no_wait() -> None:
    slots = Slots(2)
    assert [slots.take() for _ in range(3)] == [True, True, False]
    slots.release()
    assert slots.take()
    assert slots.taken == 2


def test_waiters_are_served_in_order_and_before_newcomers() -> None:
    async def main() -> list[int]:
        slots, served = Slots(1), []
        assert slots.take()

        async def wait(n: int) -> None:
            await slots.wait()
            served.append(n)

        tasks = [asyncio.ensure_future(wait(n)) for n in range(3)]
        await asyncio.sleep(0)
        slots.release()
        assert not slots.take(), "the slot belongs to the first waiter"
        for _ in range(2):
            await asyncio.sleep(0)
            slots.release()
        await asyncio.gather(*tasks)
        return served

    assert asyncio.run(main()) == [0, 1, 2]


def test_cancelled_waits_neither_lose_nor_add_slots() -> None:
    async def main(seed: int) -> None:
        source, slots, most = random.Random(seed), Slots(3), 0

        async def work() -> None:
            nonlocal most
            if not slots.take():
                await slots.wait()
            try:
                most = max(most, slots.taken)
                await asyncio.sleep(0)
            finally:
                slots.release()

        tasks = [asyncio.ensure_future(work()) for _ in range(30)]
        for _ in range(20):
            source.choice(tasks).cancel()
            if source.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (slots.taken, most) == (0, 3)

    for seed in range(50):
        asyncio.run(main(seed))
