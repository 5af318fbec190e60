"""One question for many watchers: fewer requests, and never an answer that is older than was asked for."""

from __future__ import annotations

import asyncio

import pytest
from tests.caches import Bench, make_bench, until
from tests.objects import CONFIG_MAP, NAMESPACE, asynchronous, config_map

from kedge.errors import Unavailable
from kedge.keys import NO_REVISION
from kedge.runtime.revision_probe import RevisionProbe


def probes(bench: Bench) -> int:
    return sum(options.limit == 1 for options in bench.wire.lists)


@asynchronous
async def test_watchers_that_ask_together_share_one_answer_whatever_their_kinds() -> None:
    bench = await make_bench()
    probe, now_s = RevisionProbe(bench.client, bench.env), bench.env.monotonic()
    kinds = (CONFIG_MAP, NAMESPACE) * 5
    answers = await asyncio.gather(*(probe.read(kind, since_s=now_s) for kind in kinds))
    assert probes(bench) == 1
    assert set(answers) == {(await bench.world.store.revision(), answers[0].asked_s)}


@asynchronous
async def test_an_answer_to_an_earlier_question_is_no_answer() -> None:
    """1. The probe is asked. 2. Somebody writes. 3. A stream begins: only what is asked now tells how far it is."""
    bench = await make_bench()
    probe = RevisionProbe(bench.client, bench.env)
    before = await probe.read(CONFIG_MAP, since_s=bench.env.monotonic())
    await bench.world.create(config_map("m"))
    began_s = before.asked_s + 0.001
    await until(lambda: bench.env.monotonic() > began_s)
    after = await probe.read(CONFIG_MAP, since_s=began_s)
    assert after.revision > before.revision
    assert after.asked_s >= began_s
    assert probes(bench) == 2


@asynchronous
async def test_kinds_with_histories_of_their_own_are_asked_one_by_one() -> None:
    bench = await make_bench()
    bench.wire.one_history = False
    probe, now_s = RevisionProbe(bench.client, bench.env), bench.env.monotonic()
    for kind in (CONFIG_MAP, NAMESPACE):
        assert (await probe.read(kind, since_s=now_s)).revision > NO_REVISION
    assert probes(bench) == 2


@asynchronous
async def test_a_question_without_an_answer_is_put_again_by_the_next_who_asks() -> None:
    bench = await make_bench()
    probe = RevisionProbe(bench.client, bench.env)
    bench.wire.down = True
    with pytest.raises(Unavailable):
        await probe.read(CONFIG_MAP, since_s=bench.env.monotonic())
    bench.wire.down = False
    await asyncio.sleep(0.05)  # longer than the breaker of the test's client stays open
    assert (await probe.read(CONFIG_MAP, since_s=bench.env.monotonic())).revision > NO_REVISION
