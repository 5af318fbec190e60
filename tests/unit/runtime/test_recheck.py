"""A recheck gives the same result from the record, and an error if the record lacks an input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.controllers import (
    POD,
    REPLICA_SET,
    ControllerHarness,
    FunctionReconciler,
    ReplicasReconciler,
    until,
    with_harness,
)
from tests.objects import CONFIG_MAP

from kedge import Action, Context
from kedge.errors import Compacted, ReplayDiverged, Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe import Decision, DecisionLog, Recorder, read_decisions
from kedge.observe.records import (
    PROCESS_ENDED,
    UNDER_WAY,
    cut_off_record,
    decode_decision,
    encode_decision,
    without_objects,
)
from kedge.runtime import CutOff, ReceivedEvidence, RecordedEvidence, recheck
from kedge.runtime.cache import Index

WEB = Key("ReplicaSet.apps", "default", "web")


# -- inputs that no record has ---------------------------------------------------------------------


class Counter:
    """Module state. Reset before each test, so that the first run counts 0."""

    n = -1

    def __next__(self) -> int:
        self.n += 1
        return self.n


COUNTER = Counter()


async def reads_the_clock(ctx: Context, key: Key) -> Action:
    found = ctx.get(key)
    assert found is not None
    await ctx.patch(found, {"metadata": {"annotations": {"at": str(time.time())}}})
    return Action.await_change()


async def remembers(ctx: Context, key: Key) -> Action:
    found = ctx.get(key)
    assert found is not None
    await ctx.patch(found, {"metadata": {"annotations": {"n": str(next(COUNTER))}}})
    return Action.await_change()


async def decides_how_long(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    return Action.requeue(delay_s=100 + next(COUNTER))


async def gives_another_reason(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    return Action.await_change(reason=f"for the {next(COUNTER)}th time")


async def fails_with_another_message(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    raise Unavailable(f"no {next(COUNTER)}")


async def fails_or_not(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    if next(COUNTER) % 2 == 0:
        raise Unavailable("drawn to fail")
    return Action.await_change()


async def asks_more(ctx: Context, key: Key) -> Action:
    for _ in range(next(COUNTER) + 1):
        ctx.get(key)
    return Action.await_change()


async def asks_less(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    if next(COUNTER) % 2 == 0:
        ctx.list(REPLICA_SET)
    return Action.await_change()


async def asks_about_another(ctx: Context, _: Key) -> Action:
    ctx.list(REPLICA_SET, namespace=f"n{next(COUNTER)}")
    return Action.await_change()


async def draws_or_not(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    if next(COUNTER) % 2 == 0:
        ctx.random.random()
    return Action.await_change()


async def draws_later(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    if next(COUNTER) % 2 == 1:
        ctx.random.random()
    return Action.await_change()


async def looks_at_the_time(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    if next(COUNTER) % 2 == 0:
        ctx.now()
    return Action.await_change()


async def allows_another_age(ctx: Context, _: Key) -> Action:
    ctx.check_fresh(REPLICA_SET, max_age_s=1000 + next(COUNTER))
    return Action.await_change()


async def swallows_everything(ctx: Context, key: Key) -> Action:
    try:
        for _ in range(next(COUNTER) + 1):
            ctx.get(key)
    except Exception:  # noqa: BLE001  as careless code does
        pass
    return Action.await_change()


FINISHED: list[str] = []


async def depends_on_reply_order(ctx: Context, key: Key) -> Action:
    """Two requests at once: which reply comes first is decided by the network, and by nothing in the record."""
    found = ctx.get(key)
    assert found is not None

    async def ask(name: str) -> None:
        await ctx.fresh(Key("ConfigMap", "default", name))
        FINISHED.append(name)

    FINISHED.clear()
    await asyncio.gather(ask("slow"), ask("quick"))
    return Action.await_change(reason=FINISHED[0])


HIDDEN: list[Callable[[Context, Key], Any]] = [
    reads_the_clock, remembers, decides_how_long, gives_another_reason, fails_with_another_message, fails_or_not,
    asks_more, asks_less, asks_about_another, draws_or_not, draws_later, looks_at_the_time, allows_another_age,
    swallows_everything,
]  # fmt: skip


@pytest.mark.parametrize("work", HIDDEN, ids=lambda work: work.__name__)
def test_an_input_that_the_record_lacks_is_found(work: Any) -> None:
    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        COUNTER.n = -1
        await harness.create()
        controller = harness.open(work)
        await until(harness.decisions)
        await controller.stop()
        decision = harness.decisions()[0]
        with pytest.raises(ReplayDiverged, match=str(WEB)):
            await recheck(decision, FunctionReconciler(work), ReceivedEvidence.of(harness.caches), harness.env)

    test()


@with_harness()
async def test_the_order_of_concurrent_replies_is_such_an_input(harness: ControllerHarness) -> None:
    await harness.create()
    harness.sim.faults.script("request of api.get", "delay", nth=1)
    controller = harness.open(depends_on_reply_order)
    await until(harness.decisions)
    await controller.stop()
    assert harness.decisions()[0].reason == "quick"
    with pytest.raises(ReplayDiverged, match=r"its get of ConfigMap/default/quick has key .* name='slow'"):
        await harness.recheck(depends_on_reply_order)


# -- what a record has -----------------------------------------------------------------------------


async def uses_everything(ctx: Context, key: Key) -> Action:
    """Every way to read, to write, to get the time and to draw."""
    found = ctx.get(key)
    ctx.get(Key("ReplicaSet.apps", "default", "nobody"))
    ctx.check_fresh(REPLICA_SET, max_age_s=1e6)
    ctx.list(REPLICA_SET, selector="app in (a, b), !c")
    ctx.list(REPLICA_SET, namespace="default")
    ctx.list(POD, selector="app=web")
    assert found is not None
    ctx.owned(POD, found)
    ctx.by_index(REPLICA_SET, BY_SIZE, "1")
    await ctx.fresh(key)
    await ctx.fresh_list(CONFIG_MAP, namespace="default")
    body = {
        "metadata": {"name": "m", "namespace": "default"},
        "data": {"uid": ctx.new_uid(), "t": ctx.now().isoformat()},
    }
    made = await ctx.ensure(CONFIG_MAP, body)
    try:
        await ctx.create(CONFIG_MAP, body)
    except Exception as error:  # noqa: BLE001
        reason = type(error).__name__
    await ctx.patch(made, {"data": {"more": "yes", "tuple": None}})
    await ctx.write_status(found, {"replicas": ctx.random.randrange(3), "list": (1, 2, (3,))})
    return Action.requeue(delay_s=ctx.random.uniform(10, 20), reason=reason)


BY_SIZE = Index("size", lambda each: (str(each.view.spec.replicas),))


@with_harness()
async def test_everything_that_uses_the_context_is_in_the_record(harness: ControllerHarness) -> None:
    await harness.create("web", 1)
    controller = harness.open(uses_everything, owns=(POD,), indexes=(BY_SIZE,))
    await until(lambda: len(harness.decisions()) >= 3)
    await controller.stop()
    assert {each.result for each in harness.decisions()} == {"requeue"}
    assert await harness.recheck(uses_everything) >= 3
    for decision in harness.decisions():
        again = decode_decision(encode_decision(decision))
        await recheck(again, FunctionReconciler(uses_everything), RecordedEvidence(), harness.env)


@with_harness()
async def test_a_decision_that_a_crash_cut_off_is_reported_as_such_and_not_as_diverged(
    harness: ControllerHarness,
) -> None:
    await harness.create("web", 1)
    controller = harness.open(uses_everything, owns=(POD,), indexes=(BY_SIZE,))
    await until(harness.decisions)
    await controller.stop()
    whole = harness.decisions()[0]
    for made in range(len(whole.steps) + 1):
        cut = msgspec.structs.replace(whole, steps=whole.steps[:made], result="", delay_s=None)
        with pytest.raises(CutOff, match=f"{WEB} was cut off after step {made}:"):
            await recheck(cut, FunctionReconciler(uses_everything), RecordedEvidence(), harness.env)
    other = msgspec.structs.replace(whole, steps=whole.steps[1:], result="", delay_s=None)
    with pytest.raises(ReplayDiverged):
        await recheck(other, FunctionReconciler(uses_everything), RecordedEvidence(), harness.env)


@with_harness()
async def test_a_crash_in_mid_request_leaves_a_record_with_its_reads_and_the_request(
    harness: ControllerHarness,
) -> None:
    """The write is committed and its reply never comes: the version names a decision that has not ended."""
    await harness.create("web", 2)
    harness.transport.stuck = True
    harness.open(ReplicasReconciler().reconcile, owns=(POD,))
    await until(lambda: harness.cluster.all("Pod"))
    harness.host.crash()
    assert not harness.decisions()
    (found,) = (cut_off_record(each, PROCESS_ENDED) for each in harness.recorder.unfinished())
    (pod,) = harness.cluster.all("Pod")
    assert pod.origin.decision == found.id
    assert (found.result, found.cut_off) == ("", PROCESS_ENDED)
    assert {each.cache.partition("[")[0] for each in found.reads} == {"ReplicaSet.apps", "Pod"}
    (call,) = found.calls
    assert (call.outcome, call.operation, call.revision) == (UNDER_WAY, pod.origin.operation, 0)
    for evidence in (ReceivedEvidence.of(harness.caches), RecordedEvidence()):
        again = decode_decision(encode_decision(found))
        with pytest.raises(CutOff, match=f"{len(found.steps)}: {PROCESS_ENDED}"):
            await recheck(again, ReplicasReconciler(), evidence, harness.env)
        other = msgspec.structs.replace(call, intent_json=b"{}")
        wrong = msgspec.structs.replace(again, steps=[*again.steps[:-1], other])
        with pytest.raises(ReplayDiverged):
            await recheck(wrong, ReplicasReconciler(), evidence, harness.env)


@with_harness()
async def test_a_decision_that_has_ended_is_not_unfinished(harness: ControllerHarness) -> None:
    await harness.create("web", 2)
    controller = harness.open(ReplicasReconciler().reconcile, owns=(POD,))
    await until(lambda: len(harness.cluster.all("Pod")) == 2)
    await controller.stop()
    assert harness.decisions()
    assert not harness.recorder.unfinished()


@with_harness()
async def test_a_recheck_stops_at_the_request_that_has_no_reply(harness: ControllerHarness) -> None:
    """An invented reply, such as an object that does not exist, would lead the reconciler astray."""
    found: list[object] = []

    async def reads_fresh(ctx: Context, key: Key) -> Action:
        found.append(await ctx.fresh(key))
        return Action.await_change()

    await harness.create("web", 1)
    controller = harness.open(reads_fresh)
    await until(harness.decisions)
    await controller.stop()
    whole = harness.decisions()[0]
    unanswered = msgspec.structs.replace(whole.calls[0], outcome=UNDER_WAY, reply=())
    cut = msgspec.structs.replace(whole, steps=[unanswered], result="")
    found.clear()
    with pytest.raises(CutOff):
        await recheck(cut, FunctionReconciler(reads_fresh), RecordedEvidence(), harness.env)
    assert not found


async def draws_after_a_pause(ctx: Context, key: Key) -> Action:
    ctx.get(key)
    await asyncio.sleep(0.01)
    ctx.random.random()
    return Action.await_change()


@with_harness()
async def test_a_draw_behind_the_end_of_a_record_is_no_divergence(harness: ControllerHarness) -> None:
    await harness.create("web", 1)
    controller = harness.open(draws_after_a_pause)
    await until(harness.decisions)
    await controller.stop()
    cut = msgspec.structs.replace(harness.decisions()[0], result="", seed=None)
    with pytest.raises(CutOff):
        await recheck(cut, FunctionReconciler(draws_after_a_pause), RecordedEvidence(), harness.env)


def test_records_from_the_durable_log_are_complete(tmp_path: Path) -> None:
    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        log = DecisionLog(tmp_path, harness.env)
        harness.recorder = Recorder(harness.env, log=log)
        await harness.create("web", 3)
        harness.start(harness.controller(ReplicasReconciler().reconcile, owns=(POD,)))
        await asyncio.sleep(5)
        await harness.scale("web", 1)
        await asyncio.sleep(5)
        log.close()
        read = list(read_decisions(tmp_path))
        assert len(read) == len(harness.decisions()) > 5
        for decision in read:
            assert isinstance(decision, Decision)
            await recheck(decision, ReplicasReconciler(), RecordedEvidence(), harness.env)
            for step in decision.reads[:1]:
                wrong = msgspec.structs.replace(decision, steps=[s for s in decision.steps if s is not step])
                with pytest.raises(ReplayDiverged):
                    await recheck(wrong, ReplicasReconciler(), RecordedEvidence(), harness.env)

    test()


@with_harness()
async def test_a_record_without_its_objects_raises_instead_of_being_run_again(harness: ControllerHarness) -> None:
    await harness.create("web", 1)
    harness.start(harness.controller(ReplicasReconciler().reconcile, owns=(POD,)))
    await until(harness.decisions)
    stripped, dropped = without_objects(harness.decisions()[0])
    stripped.objects_dropped = dropped
    for evidence in (RecordedEvidence(), ReceivedEvidence.of(harness.caches)):
        with pytest.raises(Compacted, match="too large"):
            await recheck(stripped, ReplicasReconciler(), evidence, harness.env)


@with_harness(Limits(decisions_sample_every=1, received_log_max=4, received_pinned_max=8, decisions_kept_max=100))
async def test_a_record_whose_log_is_gone_raises_even_if_the_reconciler_swallows_errors(
    harness: ControllerHarness,
) -> None:
    async def careless(ctx: Context, key: Key) -> Action:
        with suppress(Exception):
            ctx.get(key)
        return Action.await_change()

    await harness.create()
    harness.open(careless)
    await until(harness.decisions)
    first = harness.decisions()[0]
    for n in range(1, 40):
        await harness.scale("web", n)
    await asyncio.sleep(30)
    with pytest.raises(Compacted):
        await recheck(first, FunctionReconciler(careless), ReceivedEvidence.of(harness.caches), harness.env)
    await recheck(first, FunctionReconciler(careless), RecordedEvidence(), harness.env)


@with_harness(Limits(decisions_sample_every=1, received_log_max=4, decisions_kept_max=1000))
async def test_a_kept_record_pins_the_entries_it_was_decided_on(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        return Action.await_change()

    await harness.create()
    harness.open(work)
    await until(harness.decisions)
    for n in range(1, 40):
        await harness.scale("web", n)
    await asyncio.sleep(5)
    assert await harness.recheck(work) >= 2
    harness.recorder.close()
    await harness.scale("web", 50)
    await asyncio.sleep(5)
    assert len(next(iter(harness.caches)).received) <= 5, "a record that is no longer held keeps the log"


@with_harness()
async def test_a_cache_that_is_rebuilt_differently_is_rejected_as_evidence(harness: ControllerHarness) -> None:
    """The rebuilt cache is compared with the recorded read: a wrong log is found."""

    async def work(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        ctx.list(REPLICA_SET)
        return Action.await_change()

    await harness.create()
    await harness.create("db")
    harness.open(work)
    await until(lambda: len(harness.decisions()) >= 2)

    class Lying(ReceivedEvidence):
        def state_at(self, read: Any) -> Any:
            held = dict(super().state_at(read))
            if read.verb == "list":
                held.pop(WEB)
            return held

    evidence = Lying({cache.name: cache.received for cache in harness.caches})
    with pytest.raises(ReplayDiverged, match="in the rebuilt cache"):
        await recheck(harness.decisions()[0], FunctionReconciler(work), evidence, harness.env)


@with_harness()
async def test_a_body_that_cannot_be_sent_is_a_failure_that_can_be_run_again(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await ctx.create(CONFIG_MAP, {"metadata": {"name": "m", "namespace": "default"}, "data": {"a": object()}})
        return Action.await_change()

    await harness.create()
    controller = harness.open(work)
    await until(harness.decisions)
    await controller.stop()
    assert harness.decisions()[0].result == "failed"
    assert await harness.recheck(work) >= 1


@with_harness()
async def test_a_timeout_inside_the_reconciler_can_be_run_again(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        try:
            async with asyncio.timeout(1.0):
                await ctx.patch(found, {"metadata": {"annotations": {"a": "b"}}})
        except TimeoutError:
            return Action.requeue(delay_s=60, reason="TooSlow")
        return Action.await_change()

    await harness.create()
    harness.transport.stuck = True
    harness.open(work)
    await until(harness.decisions)
    assert harness.decisions()[0].reason == "TooSlow"
    assert await harness.recheck(work) == 1
