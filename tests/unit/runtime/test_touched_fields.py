"""The fields that a decision touched: in its record, found again by a recheck, and tested with other values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kit.controllers import (
    KEEP_ALL,
    POD,
    REPLICA_SET,
    ControllerHarness,
    FunctionReconciler,
    until,
    with_harness,
)

from kedge import Action, Context
from kedge.api.objects import Object
from kedge.keys import Key
from kedge.observe.readers.coupling.perturbation import changed_versions
from kedge.observe.records import CacheRead, decode_decision, encode_decision
from kedge.runtime import RecordedEvidence
from kedge.runtime.cache import Index
from kedge.runtime.recheck import difference_on, touched_fields

WEB = Key("ReplicaSet.apps", "default", "web")
BY_SIZE = Index("size", lambda each: (str(each.view.spec.replicas),))
SELECTED = ("metadata.labels.app", "metadata.labels.tier")


async def reads_some(ctx: Context, key: Key) -> Action:
    """Only the size of its object, and a status that it writes itself."""
    found = ctx.get(key)
    if found is None:
        return Action.await_change()
    await ctx.write_status(found, {"replicas": found.view.spec.replicas})
    return Action.await_change(reason=f"{found.view.spec.min_ready_seconds >= 0}")


async def selects(ctx: Context, key: Key) -> Action:
    """Reads no view: a selector and an index do."""
    ctx.list(REPLICA_SET, selector="app!=other,tier!=other")
    ctx.by_index(REPLICA_SET, BY_SIZE, "1")
    await ctx.fresh(key)
    return Action.await_change()


async def decided(harness: ControllerHarness, work: Any, **spec: Any) -> list[Any]:
    await harness.create("web", 1)
    controller = harness.open(work, **spec)
    await until(lambda: len(harness.decisions()) >= 1)
    await controller.stop()
    return harness.decisions()


@with_harness()
async def test_a_record_has_the_fields_that_its_decision_read(harness: ControllerHarness) -> None:
    first = (await decided(harness, reads_some))[0]
    assert first.touched == {"ReplicaSet.apps": ("spec.minReadySeconds", "spec.replicas")}
    assert decode_decision(encode_decision(first)).touched == first.touched


@with_harness()
async def test_a_selector_and_an_index_read_fields_too(harness: ControllerHarness) -> None:
    first = (await decided(harness, selects, indexes=(BY_SIZE,)))[0]
    assert first.touched == {"ReplicaSet.apps": (*SELECTED, "spec.replicas")}


@with_harness(
    limits=KEEP_ALL.__class__(decisions_sample_every=1, decisions_noted_first=0, decisions_noted_every=1 << 30)
)
async def test_a_decision_that_was_not_noted_is_noted_when_it_runs_again(harness: ControllerHarness) -> None:
    first = (await decided(harness, reads_some, owns=(POD,)))[0]
    assert first.touched is None
    found = await touched_fields(first, FunctionReconciler(reads_some), RecordedEvidence(), harness.env)
    assert found == {"ReplicaSet.apps": ("spec.minReadySeconds", "spec.replicas")}


class Changed(RecordedEvidence):
    """The recorded objects, with one version in the place of another."""

    def __init__(self, changed: Object) -> None:
        self._changed = changed

    def state_at(self, read: CacheRead) -> Mapping[Key, Object]:
        return {**super().state_at(read), self._changed.key: self._changed}


@with_harness()
async def test_another_value_changes_a_decision_that_depends_on_it_and_no_other(harness: ControllerHarness) -> None:
    first = (await decided(harness, reads_some))[0]
    reconciler, (found,) = FunctionReconciler(reads_some), first.reads[0].objects

    async def differences(field: str) -> list[str]:
        tried = [each for _, each in changed_versions(found, field, [])]
        assert tried
        return [await difference_on(first, reconciler, Changed(each), harness.env) for each in tried if each]

    assert "has body" in (await differences("spec.replicas"))[0]
    assert not any(await differences("spec.minReadySeconds"))
    assert not any(await differences("metadata.labels.unread"))
