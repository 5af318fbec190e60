"""One question for many watchers: fewer requests, and never an answer that is older than was asked for."""

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
async def test_watchers_that_ask_together_share_one_answer_whatever_their_kinds() -> None:
    harness = await make_cache_harness()
    probe, now_s = RevisionProbe(harness.client, harness.env), harness.env.monotonic()
    kinds = (CONFIG_MAP, NAMESPACE) * 5
    answers = await asyncio.gather(*(probe.read(kind, since_s=now_s) for kind in kinds))
    assert probes(harness) == 1
    assert set(answers) == {(await harness.world.store.revision(), answers[0].asked_s)}


@asynchronous
async def test_an_answer_to_an_earlier_question_is_no_answer() -> None:
    """1. The probe is asked. 2. Somebody writes. 3. A stream begins: only what is asked now tells how far it is."""
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
async def test_kinds_with_histories_of_their_own_are_asked_one_by_one() -> None:
    harness = await make_cache_harness()
    harness.transport.one_history = False
    probe, now_s = RevisionProbe(harness.client, harness.env), harness.env.monotonic()
    for kind in (CONFIG_MAP, NAMESPACE):
        assert (await probe.read(kind, since_s=now_s)).revision > NO_REVISION
    assert probes(harness) == 2


@asynchronous
async def test_a_question_without_an_answer_is_put_again_by_the_next_who_asks() -> None:
    harness = await make_cache_harness()
    probe = RevisionProbe(harness.client, harness.env)
    harness.transport.down = True
    with pytest.raises(Unavailable):
        await probe.read(CONFIG_MAP, since_s=harness.env.monotonic())
    harness.transport.down = False
    await asyncio.sleep(0.05)  # longer than the breaker of the test's client stays open
    assert (await probe.read(CONFIG_MAP, since_s=harness.env.monotonic())).revision > NO_REVISION
