"""The context of a reconcile: operation ids for writes, reads after unknown outcomes, a complete record."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from tests.kit.controllers import POD, REPLICA_SET, ControllerHarness, pod_of, until, with_harness
from tests.objects import ALLOCATION, CONFIG_MAP, NODE, config_map, node

from kedge import Action, Context, WatchSpec
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import Conflict, InvariantBroken, OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.records import Budget

WEB = Key("ReplicaSet.apps", "default", "web")
VICTIM = Key("Pod", "default", "web-9")
LEDGER = Key(ALLOCATION.key_kind, "", "node-a")
ONCE = Limits(decisions_sample_every=1, client_attempts_max=1, client_deadline_s=3.0, breaker_failures_max=10_000)
"""The client does not retry, so that the reconcile itself gets the unknown outcome."""


class CacheContents(NamedTuple):
    """The content of the caches when a run begins."""

    owner: Object
    pod: Object | None
    host: Object
    ledger: Object
    leaked: str
    """The uid of a pod that is gone and still has its claim."""


Verb = Callable[[Context, CacheContents], Awaitable[Any]]


async def _nameless(ctx: Context, world: CacheContents) -> None:
    body = pod_of(world.owner, 0)
    metadata = {**body["metadata"], "generateName": "web-"}
    del metadata["name"]
    await ctx.create(POD, {**body, "metadata": metadata})


def _bind(ctx: Context, world: CacheContents) -> Awaitable[Any]:
    assert world.pod is not None
    host = world.host
    return ctx.bind(Binding(pod=world.pod.key, pod_uid=world.pod.uid, node=host.key.name, node_uid=host.uid))


def _note(owner: Object | Key) -> tuple[Object | Key, dict[str, Any]]:
    return owner, {"metadata": {"annotations": {"a": "b"}}}


WRITES: dict[str, Verb] = {
    "create": lambda ctx, world: ctx.create(POD, pod_of(world.owner, 0)),
    "create with a drawn name": _nameless,
    "ensure": lambda ctx, world: ctx.ensure(POD, pod_of(world.owner, 0)),
    "patch": lambda ctx, world: ctx.patch(*_note(world.owner)),
    "patch of a key": lambda ctx, world: ctx.patch(*_note(world.owner.key)),
    "write_status": lambda ctx, world: ctx.write_status(world.owner, {"replicas": 7}),
    "delete": lambda ctx, world: ctx.delete(world.pod, grace_s=0),  # type: ignore[arg-type]
    "evict": lambda ctx, world: ctx.evict(world.pod),  # type: ignore[arg-type]
    "bind": _bind,
    "confirm_ended": lambda ctx, world: ctx.confirm_ended(world.ledger, world.leaked),
}
READS = {"fresh", "fresh_list"}


def test_every_verb_of_the_context_that_writes_is_tried_here() -> None:
    """A new verb must be added to the table, which tests its unknown outcomes."""
    verbs = {name for name, _ in inspect.getmembers(Context, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert verbs - READS == {name.partition(" ")[0] for name in WRITES}


def state_of(harness: ControllerHarness) -> dict[Key, int]:
    kinds = ("Pod", "ReplicaSet.apps", ALLOCATION.key_kind)
    return {each.key: each.modified for each in harness.cluster.store.entries() if each.key.kind in kinds}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("lost", ["no reply", "cancelled"])
def test_no_write_treats_a_timeout_as_a_failure(name: str, lost: str) -> None:
    """After an unknown outcome the API server is read, and the key runs again only on caches that have that version."""

    @with_harness(ONCE)
    async def test(harness: ControllerHarness) -> None:
        runs: list[tuple[dict[Key, int], int]] = []
        leaked = ""

        async def work(ctx: Context, key: Key) -> Action:
            owner, pod, host = ctx.get(key), ctx.get(VICTIM), ctx.get(Key("Node", "", "node-a"))
            ledger = ctx.get(LEDGER)
            seen = {each.key: each.revision for each in (*ctx.list(POD), owner, ledger) if each is not None}
            runs.append((seen, len(harness.transport.asked)))
            if len(runs) > 1:
                return Action.await_change()
            harness.transport.mute = True  # the caches stay behind
            harness.transport.dark, harness.transport.stuck = lost == "no reply", lost == "cancelled"
            assert owner is not None
            assert host is not None
            assert ledger is not None
            world = CacheContents(owner, pod, host, ledger, leaked)
            async with asyncio.timeout(None if lost == "no reply" else 1.0):
                await WRITES[name](ctx, world)
            raise AssertionError("the write came back")

        authority = harness.cluster.authority
        owner = await harness.create("web", 1)
        host = (await authority.create(NODE, node())).object
        gone = (await authority.create(POD, pod_of(owner, 8))).object
        await authority.bind(Binding(pod=gone.key, pod_uid=gone.uid, node="node-a", node_uid=host.uid))
        await authority.delete(gone.key, DeleteOptions(grace_s=0))
        leaked = gone.uid
        await authority.create(POD, pod_of(owner, 9))
        before = state_of(harness)
        controller = harness.open(work, owns=(POD,), watches=(WatchSpec(kind=NODE), WatchSpec(kind=ALLOCATION)))
        await until(harness.decisions)
        decision = harness.decisions()[0]
        call = decision.calls[-1]
        assert call.outcome == ("OutcomeUnknown" if lost == "no reply" else "cancelled")
        assert decision.result == "failed", "neither a success nor an end"
        after = state_of(harness)
        assert after != before, "the write was not made at all"
        controller.wake(WEB)
        await asyncio.sleep(2)
        assert len(runs) == 1, "it ran on caches that do not show what it may have done"
        harness.transport.dark = harness.transport.stuck = harness.transport.mute = False
        await until(lambda: len(runs) >= 2)
        since = harness.transport.asked[runs[0][1] :]
        if call.key is not None:
            assert ("get", call.key) in since, "its outcome was not read"
        shown = runs[1][0]
        assert shown.keys() == after.keys()
        changed = {key: revision for key, revision in after.items() if before.get(key) != revision}
        assert all(shown[key] >= revision for key, revision in changed.items() if key == call.key or call.key is None)

    test()


@with_harness(ONCE)
async def test_a_fresh_read_is_recorded_and_sets_no_floor(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        assert await ctx.fresh(key) is not None
        assert await ctx.fresh(VICTIM) is None
        assert len(await ctx.fresh_list(REPLICA_SET, namespace="default")) == 1
        return Action.await_change()

    await harness.create()
    controller = harness.open(work)
    await until(harness.decisions)
    calls = harness.decisions()[0].calls
    assert [(call.verb, call.outcome) for call in calls] == [("get", "read"), ("get", "absent"), ("list", "read")]
    assert controller.statistics().waiting_floors == 0
    assert await harness.recheck(work) == 1


# -- conflicts -------------------------------------------------------------------------------------


@with_harness()
async def test_a_write_on_an_old_version_is_rejected_and_the_next_run_has_the_newer_one(
    harness: ControllerHarness,
) -> None:
    """argo-rollouts#4073 (bug 10): newer state is never overwritten, and the conflict is not permanent."""
    runs: list[tuple[int, int]] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        runs.append((found.revision, found.view.spec.replicas))
        if len(runs) == 1:
            harness.transport.mute = True
            await harness.scale("web", 5)
        await ctx.write_status(found, {"replicas": found.view.spec.replicas})
        return Action.await_change()

    await harness.create("web", 1)
    controller = harness.open(work)
    await until(harness.decisions)
    first = harness.decisions()[0]
    assert first.error.startswith("Conflict")
    assert (await harness.get()).view.status.replicas == 0
    for _ in range(5):
        controller.wake(WEB)
        await asyncio.sleep(0.5)
    assert len(runs) == 1, "it tried again on the version that was refused"
    harness.transport.mute = False
    await until(lambda: len(runs) >= 2)
    assert runs[1][1] == 5
    await asyncio.sleep(1)
    found = await harness.get()
    assert (found.view.status.replicas, found.view.spec.replicas) == (5, 5)
    assert sum(each.error.startswith("Conflict") for each in harness.decisions()) == 1


@with_harness()
async def test_a_replacement_of_the_same_name_is_neither_patched_nor_deleted(harness: ControllerHarness) -> None:
    refused: list[str] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or refused:
            return Action.await_change()
        await harness.cluster.authority.delete(key)
        await harness.create("web", 2)
        for attempt in (
            ctx.patch(found, {"spec": {"replicas": 9}}),
            ctx.patch(found, {"spec": {"replicas": 9}}, any_version=True),
            ctx.delete(found),
            ctx.delete(found, any_version=True),
        ):
            try:
                await attempt
            except Conflict as error:
                refused.append(type(error).__name__)
        return Action.await_change()

    await harness.create("web", 1)
    harness.open(work)
    await until(harness.decisions)
    assert refused == ["Conflict"] * 4
    assert (await harness.get()).view.spec.replicas == 2


# -- identity --------------------------------------------------------------------------------------


@with_harness()
async def test_operation_ids_are_stable_in_a_decision_and_unique_across_runs_and_processes(
    harness: ControllerHarness,
) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        changed = await ctx.patch(found, {"metadata": {"annotations": {"n": ctx.decision}}})
        await ctx.patch(changed, {"metadata": {"annotations": {"m": ctx.decision}}})
        return Action.await_change()

    await harness.create()
    other = harness.another("other")
    both = (harness, other)
    for each in both:
        controller = each.open(work, name="twins")
        await until(each.decisions)
        controller.wake(WEB)
        await asyncio.sleep(5)
        await controller.stop()
    operations = [call.operation for each in both for decision in each.decisions() for call in decision.calls]
    assert len(set(operations)) == len(operations) >= 8
    for each in both:
        for decision in each.decisions():
            assert [call.operation for call in decision.calls] == [f"{decision.id}#{n}" for n in (1, 2)][
                : len(decision.calls)
            ]
    found = await harness.get()
    assert found.origin.decision in {decision.id for each in both for decision in each.decisions()}


@with_harness(Limits(decisions_sample_every=1))
async def test_a_repeat_after_a_lost_reply_carries_the_same_id_and_happens_once(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        if not found.metadata.annotations:
            await ctx.patch(found, {"metadata": {"annotations": {"n": "1"}}})
        return Action.await_change()

    harness.sim.faults.script("request of api.patch", "lose")
    before = await harness.create()
    harness.open(work)
    await until(harness.decisions)
    calls = harness.decisions()[0].calls
    assert [call.outcome for call in calls] == ["done"]
    assert len([verb for verb, _ in harness.transport.asked if verb == "patch"]) == 2
    assert (await harness.get()).origin.operation == calls[0].operation
    assert (await harness.get()).revision > before.revision


@with_harness()
async def test_a_decision_that_has_ended_sends_no_requests(harness: ControllerHarness) -> None:
    """A task that a reconciler leaves behind would run concurrently with the next run of its key."""
    left: list[Context] = []

    async def work(ctx: Context, _: Key) -> Action:
        left.append(ctx)
        return Action.await_change()

    found = await harness.create()
    harness.open(work)
    await until(harness.decisions)
    with pytest.raises(InvariantBroken, match="has ended"):
        await left[0].patch(found, {"spec": {"replicas": 9}})
    assert (await harness.get()).view.spec.replicas == 0


# -- what is recorded ------------------------------------------------------------------------------


@with_harness()
async def test_a_record_keeps_the_request_body_although_the_caller_changes_it_later(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        assert owner is not None
        body = config_map("a", colour="red")
        for name in ("a", "b", "c"):
            body["metadata"]["name"] = name
            await ctx.ensure(CONFIG_MAP, body)
        return Action.await_change()

    await harness.create()
    harness.open(work)
    await until(harness.decisions)
    asked = [call.intent["metadata"]["name"] for call in harness.decisions()[0].calls]
    assert asked == ["a", "b", "c"]
    assert await harness.recheck(work) == 1


@with_harness()
async def test_a_record_has_its_wake_ups_its_reads_and_the_revisions_of_the_caches(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        ctx.owned(POD, found)
        await asyncio.sleep(1.0)
        await ctx.write_status(found, {"replicas": ctx.random.randrange(1, 5)})
        return Action.requeue(delay_s=3600, condition="Ready", reason="Waiting")

    created = await harness.create("web", 3)
    harness.open(work, owns=(POD,))
    await until(harness.decisions)
    record = harness.decisions()[0]
    assert record.wakes == ((str(WEB), ""),)
    assert (record.uid, record.generation, record.attempt) == (created.uid, 1, 1)
    assert [mark.cache for mark in record.marks] == ["ReplicaSet.apps", "Pod"]
    assert all(mark.revision >= created.revision for mark in record.marks[:1])
    assert [(read.cache, read.verb, read.found) for read in record.reads] == [
        ("ReplicaSet.apps", "get", created.revision),
        ("Pod", "index", 0),
    ]
    (call,) = record.calls
    assert (call.verb, call.key, call.check, call.outcome) == (
        "patch status",
        WEB,
        f"revision {created.revision}",
        "done",
    )
    assert call.began_s >= 1.0
    assert call.revision == (await harness.get()).revision
    assert (record.result, record.delay_s, record.condition, record.reason) == ("requeue", 3600, "Ready", "Waiting")
    assert record.took_s >= 1.0
    assert record.seed is not None
    assert harness.recorder.writer_of(WEB, call.revision) == record.id


# -- staleness -------------------------------------------------------------------------------------


@with_harness(Limits(decisions_sample_every=1, watch_probe_s=1.0, watch_silence_s=3600.0))
async def test_a_declared_staleness_bound_is_enforced_before_the_reconciler_and_recorded(
    harness: ControllerHarness,
) -> None:
    runs: list[float] = []

    async def work(ctx: Context, key: Key) -> Action:
        ctx.check_fresh(REPLICA_SET, max_age_s=3000.0)
        ctx.get(key)
        runs.append(harness.sim.now_s)
        return Action.await_change()

    await harness.create()
    controller = harness.open(work, max_age_s=10.0, owns=(POD,))
    await until(lambda: runs)
    kept = harness.decisions()[0].steps[:3]
    assert [(step.budget_s, step.kept, step.declared) for step in kept if isinstance(step, Budget)] == [
        (10.0, True, True), (10.0, True, True), (3000.0, True, False),
    ]  # fmt: skip
    harness.transport.mute = True
    await asyncio.sleep(60)
    runs.clear()
    controller.wake(WEB)
    await asyncio.sleep(30)
    assert not runs, "it decided on a cache that is too old"
    stale = harness.decisions()[-1]
    assert stale.result == "failed"
    assert stale.error.startswith("Stale: the cache of ReplicaSet.apps is ")
    assert [type(step) for step in stale.steps] == [Budget]
    harness.transport.mute = False
    await until(lambda: runs)
    assert await harness.recheck(work) >= 3


@with_harness(Limits(decisions_sample_every=1, watch_probe_s=1.0, watch_silence_s=3600.0))
async def test_a_staleness_bound_of_one_decision_is_enforced_at_its_call(harness: ControllerHarness) -> None:
    ends: list[str] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        if found.view.spec.replicas == 0:
            try:
                ctx.check_fresh(REPLICA_SET, max_age_s=10.0)
            except OperatingError as error:
                ends.append(type(error).__name__)
                return Action.requeue(delay_s=3600)
        ends.append("decided")
        return Action.await_change()

    await harness.create()
    controller = harness.open(work)
    await until(lambda: ends == ["decided"])
    harness.transport.mute = True
    await asyncio.sleep(60)
    controller.wake(WEB)
    await until(lambda: ends[-1] == "Stale")
    budgets = [step for step in harness.decisions()[-1].steps if isinstance(step, Budget)]
    assert [(step.budget_s, step.kept, step.declared) for step in budgets] == [(10.0, False, False)]
    assert await harness.recheck(work) == 2


# -- loops -----------------------------------------------------------------------------------------


def replicas_of(value: int) -> Any:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None and found.view.spec.replicas != value:
            await ctx.patch(found, {"spec": {"replicas": value}})
        return Action.await_change()

    return work


def answers(value: bool) -> Any:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None:
            status = {"type": "Good", "status": str(value), "reason": "Set"}
            await ctx.write_status(found, {"conditions": [status]})
        return Action.await_change()

    return work


@pytest.mark.parametrize("make", [replicas_of, answers], ids=["spec", "condition"])
def test_two_controllers_that_undo_each_other_are_throttled_and_named(make: Callable[[Any], Any]) -> None:
    """crossplane#6751 (bug 14): a conflict at full speed, without error or backoff, is found and its writer named."""

    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        await harness.create("web", 0)
        one = harness.open(make(3 if make is replicas_of else True), name="one")
        two = harness.open(make(5 if make is replicas_of else False), name="two")
        await asyncio.sleep(30)
        early = one.statistics().runs + two.statistics().runs
        await asyncio.sleep(600)
        late = one.statistics().runs + two.statistics().runs - early
        errors = [str(error) for error in harness.reported]
        assert any("which two wrote" in each and "web" in each for each in errors), errors
        assert any("which one wrote" in each and "web" in each for each in errors), errors
        assert late < 200, f"{late} runs in ten minutes"
        loops = one.statistics().queue.loops
        assert [(loop.key, loop.woken_by.writer) for loop in loops] == [(WEB, "two")]

    test()


@with_harness(Limits(queue_loop_runs_max=5))
async def test_fan_out_is_not_a_conflict(harness: ControllerHarness) -> None:
    """crossplane#7108 (bug 14): many changes of many children wake one owner; that is work, and is not throttled."""

    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is not None:
            labelled = [pod for pod in ctx.owned(POD, owner) if "colour" in pod.metadata.labels]
            await ctx.write_status(owner, {"replicas": len(labelled)})
        return Action.await_change()

    async def paint(ctx: Context, key: Key) -> Action:
        pod = ctx.get(key)
        if pod is not None and "colour" not in pod.metadata.labels:
            await ctx.patch(pod, {"metadata": {"labels": {"colour": "red"}}})
        return Action.await_change()

    owner = await harness.create("web", 40)
    counter = harness.open(work, owns=(POD,), name="counter")
    painter = harness.open(paint, kind=POD, name="painter")
    for slot in range(40):
        await harness.cluster.authority.create(POD, pod_of(owner, slot))
        await asyncio.sleep(0.05)
    await until(lambda: counter.explain(WEB) is None and painter.statistics().queue.keys == 0)
    assert (await harness.get()).view.status.replicas == 40
    assert not harness.reported
    assert not counter.statistics().queue.loops


@with_harness()
async def test_repeated_changes_by_a_user_are_reconciled_at_once_each_time(harness: ControllerHarness) -> None:
    """A version that no controller wrote is new input each time: reverting it repeatedly is not a conflict."""
    counts: list[int] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        counts.append(found.view.spec.replicas)
        await ctx.patch(found, {"metadata": {"annotations": {"size": str(found.view.spec.replicas)}}})
        return Action.await_change()

    await harness.create("web", 0)
    harness.open(work)
    for n in range(1, 60):
        await harness.scale("web", n % 2)
        await asyncio.sleep(0.2)
        assert (await harness.get()).metadata.annotations["size"] == str(n % 2)
    assert not harness.reported


@with_harness()
async def test_a_time_in_a_status_causes_no_loop(harness: ControllerHarness) -> None:
    """kubeflow/notebooks PR 1343 (bug 15): a status that contains `now()` is written once, not in a loop."""

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await ctx.write_status(found, {"replicas": 1, "checkedAt": ctx.now().isoformat()})
        return Action.await_change()

    await harness.create()
    controller = harness.open(work)
    await asyncio.sleep(300)
    assert controller.statistics().runs <= 4
    assert sum(len(each.calls) for each in harness.decisions()) == 1
    assert not harness.reported


@with_harness()
async def test_a_time_in_a_plain_patch_causes_a_loop_that_is_throttled(harness: ControllerHarness) -> None:
    """kubeflow/notebooks PR 1343 (bug 15): without `write_status` the queue still finds the loop, and names it."""

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await ctx.patch(found, {"metadata": {"annotations": {"checked": ctx.now().isoformat()}}})
        return Action.await_change()

    await harness.create()
    controller = harness.open(work, name="clock")
    await asyncio.sleep(60)
    early = controller.statistics().runs
    await asyncio.sleep(600)
    assert controller.statistics().runs - early < 60
    assert any("which clock wrote" in str(error) for error in harness.reported)
