"""The determinism boundary, and its limits."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import uuid

import pytest

from kedge.env import system_env, uid_from
from kedge.limits import Limits
from kedge.metrics import Metrics


def test_uids_are_version_4_and_come_from_their_source() -> None:
    drawn = [uid_from(random.Random(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    for seed in range(200):
        parsed = uuid.UUID(uid_from(random.Random(seed)))
        assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


def test_a_metric_requested_twice_is_the_same_series() -> None:
    metrics = Metrics()
    assert metrics.counter("kedge_a_total", "a") is metrics.counter("kedge_a_total", "a")
    with pytest.raises(TypeError, match="kedge_a_total is a Counter"):
        metrics.gauge("kedge_a_total", "a")


def test_a_spawned_task_that_fails_is_reported_and_kept_until_it_ends() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["message"]))
        env = system_env()

        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        env.spawn(fail(), name="doomed")
        for _ in range(5):
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(main()) == ["task doomed failed"]


def test_every_bound_has_a_reason_and_a_metric() -> None:
    for field in dataclasses.fields(Limits):
        assert field.metadata["reason"], field.name
        assert re.fullmatch(r"kedge_[a-z_]+", field.metadata["metric"]), field.name
        assert isinstance(field.default, int | float), field.name
        assert field.default > 0, field.name
