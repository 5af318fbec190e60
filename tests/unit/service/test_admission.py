"""The admission chain: ordered, proved, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kit.policies import add_label, deny
from tests.objects import asynchronous, config_map, deployment, make_world, pod, pod_key

from kedge.api.requests import WriteOptions
from kedge.errors import Forbidden, Invalid
from kedge.keys import Key
from kedge.server.service import AdmissionChain, AdmissionRequest, FunctionPolicy, mutations_of

DEFAULT = Key("Namespace", "", "default")


@asynchronous
async def test_every_mutation_is_recorded_with_its_policy_and_revision() -> None:
    chain = AdmissionChain([add_label("cost", "team", "risk", revision=41), add_label("zones", "zone", "c")])
    world = await make_world(admission=chain)
    made = await world.create(pod())
    assert made.metadata.labels == {"app": "web", "team": "risk", "zone": "c"}
    assert [(m.policy, m.revision, m.paths) for m in mutations_of(made.metadata.annotations)] == [
        ("cost", 41, ("/metadata/labels/team",)),
        ("zones", 0, ("/metadata/labels/zone",)),
    ]


@asynchronous
async def test_policies_run_in_order_and_see_earlier_changes() -> None:
    chain = AdmissionChain([add_label("first", "who", "first"), add_label("second", "who", "second")])
    world = await make_world(admission=chain)
    assert (await world.create(config_map())).metadata.labels == {"who": "first"}


@asynchronous
async def test_an_early_policy_sees_the_change_of_a_later_one() -> None:
    def mutate(request: AdmissionRequest, _inputs: Any) -> Sequence[dict[str, Any]]:
        labels = request.object["metadata"].get("labels", {})
        if labels.get("tier") == "gold" and "paid" not in labels:
            return [{"op": "add", "path": "/metadata/labels/paid", "value": "yes"}]
        return []

    early = FunctionPolicy("early", kinds=["ConfigMap"], mutate=mutate)
    world = await make_world(admission=AdmissionChain([early, add_label("late", "tier", "gold")]))
    assert (await world.create(config_map())).metadata.labels == {"tier": "gold", "paid": "yes"}


@asynchronous
async def test_all_rejections_are_reported_at_once() -> None:
    world = await make_world(admission=AdmissionChain([], [deny("a", "too red"), deny("b", "too late")]))
    with pytest.raises(Forbidden, match="policy a denied it: too red; policy b denied it: too late"):
        await world.create(config_map())
    assert await world.store.revision() == 1  # only the namespace was created


@asynchronous
async def test_the_result_of_a_policy_is_validated() -> None:
    def mutate(_request: AdmissionRequest, _inputs: Any) -> Sequence[dict[str, Any]]:
        return [{"op": "replace", "path": "/spec/restartPolicy", "value": "Perhaps"}]

    world = await make_world(admission=AdmissionChain([FunctionPolicy("bad", kinds=["Pod"], mutate=mutate)]))
    with pytest.raises(Invalid, match=r"spec\.restartPolicy"):
        await world.create(pod())


@asynchronous
async def test_a_policy_cannot_change_the_identity_of_an_object() -> None:
    def mutate(_request: AdmissionRequest, _inputs: Any) -> Sequence[dict[str, Any]]:
        return [{"op": "replace", "path": "/metadata/name", "value": "other"}]

    world = await make_world(admission=AdmissionChain([FunctionPolicy("bad", kinds=["Pod"], mutate=mutate)]))
    with pytest.raises(Forbidden, match=r"metadata\.name"):
        await world.create(pod())


@asynchronous
async def test_a_policys_inputs_are_proved_by_the_commit() -> None:
    """The input changes between the policy's read and the commit: the policy must run again."""
    started = asyncio.Event()

    def validate(_request: AdmissionRequest, inputs: Any) -> Sequence[str]:
        started.set()
        labels = inputs[DEFAULT].metadata.labels
        return ["the namespace is frozen"] if labels.get("frozen") else []

    policy = FunctionPolicy("freeze", kinds=["ConfigMap"], inputs=lambda _: [DEFAULT], validate=validate)
    world = await make_world(admission=AdmissionChain([], [policy]))
    creating = asyncio.ensure_future(world.create(config_map()))
    freezing = asyncio.ensure_future(world.service.patch(DEFAULT, {"metadata": {"labels": {"frozen": "yes"}}}))
    outcome, frozen = await asyncio.gather(creating, freezing, return_exceptions=True)
    assert not isinstance(frozen, BaseException)
    if isinstance(outcome, BaseException):
        assert isinstance(outcome, Forbidden)
    else:
        assert outcome.revision < frozen.object.revision


@asynchronous
async def test_admission_applies_to_deletes() -> None:
    world = await make_world(admission=AdmissionChain([], [deny("keep", "needed for the audit", verbs=["delete"])]))
    await world.create(pod())
    with pytest.raises(Forbidden, match="needed for the audit"):
        await world.service.delete(pod_key())


@asynchronous
async def test_admission_applies_to_dry_runs() -> None:
    world = await make_world(admission=AdmissionChain([add_label("cost", "team", "risk")]))
    kind = (await world.create(config_map())).kind
    shown = await world.service.create(kind, config_map("dry"), options=WriteOptions(dry_run=True))
    assert shown.object.metadata.labels == {"team": "risk"}


@asynchronous
async def test_a_policys_change_of_the_spec_increments_the_generation_unless_it_reverts_the_callers() -> None:
    def mutate(request: AdmissionRequest, _inputs: Any) -> list[dict[str, Any]]:
        replicas = 7 if request.object["metadata"].get("labels") else 3
        return [{"op": "add", "path": "/spec/replicas", "value": replicas}]

    policy = FunctionPolicy("replicas", kinds=["Deployment.apps"], mutate=mutate)
    world = await make_world(admission=AdmissionChain([policy]))
    made = await world.create(deployment(replicas=5))
    taken_back = await world.service.patch(made.key, {"spec": {"replicas": 5}})
    assert (taken_back.object.revision, taken_back.object.metadata.generation) == (made.revision, 1)
    added = await world.service.patch(made.key, {"metadata": {"labels": {"a": "b"}}})
    assert (added.object.view.spec.replicas, added.object.metadata.generation) == (7, 2)
