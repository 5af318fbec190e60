"""Admission records: the policy and its revision behind each change and each refusal, and no record of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.limit_ranges import bare_pod, for_containers, limit_range
from tests.kit.policies import add_label, deny
from tests.objects import World, asynchronous, make_world, pod, pod_key, resource_quota

from kedge.api.kinds import KINDS
from kedge.api.requests import WriteOptions
from kedge.errors import Forbidden
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import AdmissionAct, Decision
from kedge.server.service import AdmissionChain

BY_ADA = Origin("", "", "ada", ("people",))
EVERYTHING = Limits(decisions_sample_every=1)


async def recorded_world(admission: AdmissionChain | None = None) -> tuple[World, Recorder]:
    world = await make_world(limits=EVERYTHING, admission=admission)
    recorder = Recorder(world.env)
    world.service.record_to(recorder)
    return world, recorder


def records_of(recorder: Recorder) -> list[Decision]:
    return [*recorder.decisions()][::-1]


@asynchronous
async def test_a_change_has_the_policy_its_revision_and_the_caller() -> None:
    world, recorder = await recorded_world(AdmissionChain([add_label("cost", "team", "risk", revision=41)]))
    made = await world.create(pod(), origin=BY_ADA)
    (record,) = records_of(recorder)
    assert record.steps == [AdmissionAct("cost", 41, "changed", "/metadata/labels/team")]
    assert record.admission is not None
    assert (record.admission.caller, record.admission.groups) == ("ada", ("people",))
    assert (record.key, record.uid, record.admission.revision) == (made.key, made.uid, made.revision)
    assert not record.error


@asynchronous
async def test_a_write_that_no_policy_touches_has_no_record() -> None:
    world, recorder = await recorded_world(AdmissionChain([add_label("cost", "team", "risk")]))
    body = pod()
    body["metadata"]["labels"]["team"] = "risk"
    await world.create(body)
    assert records_of(recorder) == []


@asynchronous
async def test_a_refusal_has_the_policy_and_the_owner_of_the_object_that_does_not_exist() -> None:
    world, recorder = await recorded_world(AdmissionChain((), [deny("freeze", "no changes on Fridays")]))
    body = pod()
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "owner-1", "controller": True}
    ]
    with pytest.raises(Forbidden):
        await world.create(body, origin=BY_ADA)
    (record,) = records_of(recorder)
    assert record.steps == [AdmissionAct("freeze", 0, "refused", "no changes on Fridays")]
    assert record.admission is not None
    assert (record.admission.owner_uid, record.admission.revision) == ("owner-1", 0)
    assert record.kept.startswith("failure")
    assert "no changes on Fridays" in record.error


@asynchronous
async def test_limit_ranges_classes_and_quotas_are_named_with_their_revisions() -> None:
    world, recorder = await recorded_world()
    limits = await world.create(limit_range(for_containers(default={"cpu": "1"}, max={"cpu": "2"})))
    body: dict[str, Any] = {"metadata": {"name": "urgent"}, "value": 10}
    urgent = (await world.service.create(KINDS.of_key_kind("PriorityClass.scheduling.k8s.io"), body)).object
    await world.create(pod(priorityClassName="urgent"))
    await world.create(resource_quota("small", pods="1"))
    with pytest.raises(Forbidden):
        await world.create(pod("second"))
    with pytest.raises(Forbidden):
        await world.create(bare_pod("huge", requests={"cpu": "3"}, limits={"cpu": "3"}))
    first, second, third = records_of(recorder)
    assert first.steps[-1] == AdmissionAct(str(urgent.key), urgent.revision, "changed", "the priority to 10")
    (over,) = (each for each in second.steps if isinstance(each, AdmissionAct) and each.verb == "refused")
    quota = await world.get(Key("ResourceQuota", "default", "small"))
    assert (over.policy, over.revision) == (str(quota.key), quota.revision)
    assert "used: pods=1" in over.detail
    (broken,) = (each for each in third.steps if isinstance(each, AdmissionAct) and each.verb == "refused")
    assert (broken.policy, broken.revision) == (str(limits.key), limits.revision)


@asynchronous
async def test_equal_refusals_in_quick_succession_are_one_record_with_their_number() -> None:
    world, recorder = await recorded_world(AdmissionChain((), [deny("freeze", "closed")]))

    async def refused(name: str) -> None:
        with pytest.raises(Forbidden):
            await world.service.create(
                KINDS.of_key_kind("Pod"), {**pod(), "metadata": {"name": name, "namespace": "default"}},
                options=WriteOptions(origin=BY_ADA),
            )  # fmt: skip

    for _ in range(5):
        await refused("web-0")
    assert len(records_of(recorder)) == 1
    world.clock.advance(world.env.limits.admission_repeat_s)
    await refused("web-0")
    last = records_of(recorder)[-1].admission
    assert last is not None
    assert (len(records_of(recorder)), last.repeats) == (2, 4)
    assert await world.store.get([pod_key()]) is not None


@asynchronous
async def test_a_dry_run_is_not_recorded() -> None:
    world, recorder = await recorded_world(AdmissionChain([add_label("cost", "team", "risk")], []))
    await world.create(pod(), dry_run=True)
    assert records_of(recorder) == []
