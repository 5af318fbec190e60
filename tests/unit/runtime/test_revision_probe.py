"""One probe for many watchers: fewer requests, and never a revision older than requested."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.runtime import CacheHarness, make_cache_harness, until
from tests.objects import CONFIG_MAP, NAMESPACE, asynchronous, config_map

from kedge.errors import Unavailable
from kedge.keys import NO_REVISION
from kedge.runtime.revision_probe import RevisionProbe


def probes(harness: CacheHarness) -> int:
    return sum(options.limit == 1 for options in harness.transport.lists)


@asynchronous
async def test_concurrent_reads_of_any_kinds_share_one_request() -> None:
    harness = await make_cache_harness()
    probe, now_s = RevisionProbe(harness.client, harness.env), harness.env.monotonic()
    kinds = (CONFIG_MAP, NAMESPACE) * 5
    answers = await asyncio.gather(*(probe.read(kind, since_s=now_s) for kind in kinds))
    assert probes(harness) == 1
    assert set(answers) == {(await harness.world.store.revision(), answers[0].asked_s)}


@asynchronous
async def test_a_revision_from_an_earlier_request_is_not_reused() -> None:
    """1. The revision is read. 2. A write is committed. 3. A stream begins: only a new read shows its lag."""
    harness = await make_cache_harness()
    probe = RevisionProbe(harness.client, harness.env)
    before = await probe.read(CONFIG_MAP, since_s=harness.env.monotonic())
    await harness.world.create(config_map("m"))
    began_s = before.asked_s + 0.001
    await until(lambda: harness.env.monotonic() > began_s)
    after = await probe.read(CONFIG_MAP, since_s=began_s)
    assert after.revision > before.revision
    assert after.asked_s >= began_s
    assert probes(harness) == 2


@asynchronous
async def test_kinds_with_separate_histories_are_read_one_by_one() -> None:
    harness = await make_cache_harness()
    harness.transport.one_history = False
    probe, now_s = RevisionProbe(harness.client, harness.env), harness.env.monotonic()
    for kind in (CONFIG_MAP, NAMESPACE):
        assert (await probe.read(kind, since_s=now_s)).revision > NO_REVISION
    assert probes(harness) == 2


@asynchronous
async def test_a_read_that_failed_is_repeated_by_the_next_caller() -> None:
    harness = await make_cache_harness()
    probe = RevisionProbe(harness.client, harness.env)
    harness.transport.down = True
    with pytest.raises(Unavailable):
        await probe.read(CONFIG_MAP, since_s=harness.env.monotonic())
    harness.transport.down = False
    await asyncio.sleep(0.05)  # longer than the breaker of the test's client stays open
    assert (await probe.read(CONFIG_MAP, since_s=harness.env.monotonic())).revision > NO_REVISION
