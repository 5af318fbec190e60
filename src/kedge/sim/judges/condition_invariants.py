"""Invariants of conditions: a true condition claims something that committed state shows, and no condition flaps.

Claims are in `workload_claims` and `object_claims`. One is judged by the commit that writes it, for the generation that
it observed, and again when its subject has changed. A controller may act on state that is `ClusterFacts.lag_s` old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kedge.api.conditions import is_true
from kedge.api.holds import HELD
from kedge.api.objects import Object
from kedge.api.views import Condition, NodeView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    HOLD_PREFIX,
    JOB_KIND,
    NAMESPACE_KIND,
    NODE_KIND,
    OBEYED_PREFIX,
    OUT_OF_SERVICE,
    POD_KIND,
    REPLICA_SET_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
    SIGNING_REQUEST_KIND,
)
from kedge.keys import Key
from kedge.sim.judges.condition_evidence import Claims, ConditionEvidence
from kedge.sim.judges.condition_histories import REMOVED, ConditionFlip
from kedge.sim.judges.facts import ClusterFacts, Finding, Step
from kedge.sim.judges.object_claims import CLOCK_ERROR, HELD_CLAIMS, OBJECT_CLAIMS, content_of
from kedge.sim.judges.registry import InvariantSet
from kedge.sim.judges.workload_claims import WORKLOAD_CLAIMS

CONDITIONS = InvariantSet()
CLAIMS: Mapping[tuple[str, str], Claims] = {**WORKLOAD_CLAIMS, **OBJECT_CLAIMS}
UNJUDGED: Mapping[tuple[str, str], str] = {
    (NODE_KIND, "Ready"): "its agent writes it, and no commit shows whether an agent is well; silence is judged later",
    (
        NODE_KIND,
        "Suspect",
    ): "a controller suspects a node if its own watch is late; a lasting suspicion is judged later",
    (NODE_KIND, "ResourceLimits"): "what a machine can do is no commit",
    (NODE_KIND, "VolumeMounts"): "what a machine can do is no commit",
    (SIGNING_REQUEST_KIND, "Approved"): "rights decide, and a simulated cluster has no authority that signs",
    (SIGNING_REQUEST_KIND, "Failed"): "rights decide, and a simulated cluster has no authority that signs",
    (NAMESPACE_KIND, "NamespaceDeletionContentFailure"): "a delete was refused, and a refusal is no commit",
}
"""Conditions whose true status no commit can disprove when it is written, with the reason."""
_WORKLOADS = (DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND)
_OWN = ("deployment", "replicaset", "job")
"""The controllers whose conditions have a known subject. A user's controller may count other objects than pods."""
_JUDGED = (
    *_WORKLOADS,
    POD_KIND,
    NODE_KIND,
    DISRUPTION_BUDGET_KIND,
    AUTOSCALER_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
    NAMESPACE_KIND,
)


def claims_of(kind: str, type_: str) -> Claims | None:
    if type_ == HELD:
        return HELD_CLAIMS
    if kind == SCHEDULING_POLICY_KIND and type_.startswith(OBEYED_PREFIX):
        type_ = OBEYED_PREFIX
    return CLAIMS.get((kind, type_))


def _is_judged(of: Object, by: str) -> bool:
    return of.key.kind not in _WORKLOADS or by in _OWN


# -- claims ----------------------------------------------------------------------------------------


@CONDITIONS.invariant(*_JUDGED)
def a_true_condition_holds(step: Step) -> Iterator[Finding]:
    """The claim of every condition that a commit writes as true holds, at the generation that it observed.

    A claim about the object itself holds at every commit of the object.
    """
    by = step.controller
    for of, now, _ in step.conditions():
        if now.status == "True" and _is_judged(of, by):
            yield from _false_claim(step.facts, of, now, by, step.lag_begin_s)
    for changed in step.of(*_JUDGED):
        new = changed.new
        if new is not None and not _is_judged(new, step.facts.conditions.writers.get(new.uid, "")):
            continue
        for now in new.view.status.conditions if new is not None else ():
            if now.status != "True" or new is None or now.observed_generation != new.metadata.generation:
                continue
            claims = claims_of(changed.key.kind, now.type)
            if claims is not None and claims.own:
                yield from _false_claim(step.facts, new, now, by, step.lag_begin_s)


def _false_claim(facts: ClusterFacts, of: Object, now: Condition, by: str, since_s: float) -> Iterator[Finding]:
    claims = claims_of(of.key.kind, now.type)
    if claims is None or claims.true is None:
        return
    why = claims.true(ConditionEvidence(facts, of, now, since_s, facts.now_s(), by))
    if why:
        yield f"{of.key.kind} {now.type}", f"{of.key} has {now.type}=True ({now.reason}), but {why}"


@CONDITIONS.invariant()
def a_standing_condition_holds(step: Step) -> Iterator[Finding]:
    """A condition that stays true holds, once its writer has had the time to see that its subject has changed."""
    facts = step.facts
    if not facts.conditions.is_due(step.now_s):
        return
    for place in list(facts.conditions.take_due(step.now_s)):
        found = facts.by_uid(place)
        if found is None:
            yield from _standing_node(facts, place, step.now_s)
            continue
        last_s = facts.tallies.changed_s.get(place, 0.0)
        if last_s + facts.standing_s > step.now_s:
            facts.conditions.judge_again(place, last_s + facts.standing_s)
        elif _is_followed(facts, found) and (by := facts.conditions.writers.get(place, "")):
            for now in found.view.status.conditions:
                claims = claims_of(found.key.kind, now.type) if now.status == "True" else None
                if claims is not None and claims.moves:
                    yield from _false_claim(facts, found, now, by, step.lag_begin_s)


def _is_followed(facts: ClusterFacts, of: Object) -> bool:
    """Whether a controller writes its status: it is not being deleted, and no person holds it or a part of it."""
    parts = [of, *(each for key in facts.children.get(of.uid, ()) if (each := facts.objects.get(key)) is not None)]
    held = any(name.startswith(HOLD_PREFIX) for each in parts for name in each.metadata.annotations)
    return not held and of.metadata.deletion_timestamp is None


def _standing_node(facts: ClusterFacts, name: str, now_s: float) -> Iterator[Finding]:
    """A silent node is not ready, and one that renews its lease is not suspected, after some time."""
    node = facts.objects.get(Key(NODE_KIND, "", name))
    if node is None or node.metadata.deletion_timestamp is not None:
        return
    facts.conditions.judge_again(name, now_s + facts.lag_s)
    view, limits = node.as_view(NodeView), facts.limits
    if not facts.conditions.writers.get(NODE_KIND) or any(
        each.startswith(HOLD_PREFIX) for each in view.metadata.annotations
    ):
        return
    silent_s = now_s - facts.renewed_s.get(name, now_s)
    late = silent_s > limits.node_unknown_s + 2 * facts.standing_s
    if late and is_true(view.status.conditions, "Ready") and not _others_are_silent(facts, name):
        yield "Node Ready", f"{node.key} has Ready=True, but was silent for {silent_s:.0f}s"
    flip = facts.conditions.flips.get((node.uid, "Suspect"))
    lasts = flip is not None and flip.before == "False" and now_s - flip.at_s > facts.standing_s
    tainted = OUT_OF_SERVICE in {taint.key for taint in view.spec.taints}
    seen = facts.longest_silence_s(name) < limits.node_suspect_s * (1 - CLOCK_ERROR)
    if lasts and seen and not tainted and is_true(view.status.conditions, "Suspect"):
        yield "Node Suspect", f"{node.key} has Suspect=True, but was never silent for long"


def _others_are_silent(facts: ClusterFacts, name: str) -> bool:
    """Whether another node is or was silent lately: then a controller may count as blind, and decides nothing."""
    others = [key.name for key in facts.objects if key.kind == NODE_KIND and key.name != name]
    return any(facts.longest_silence_s(each) >= facts.limits.node_suspect_s for each in others)


# -- flaps -----------------------------------------------------------------------------------------


@CONDITIONS.invariant(*_JUDGED)
def no_condition_flaps(step: Step) -> Iterator[Finding]:
    """No condition changes its status and changes it back unless its subject explains both changes.

    A process sees its subject in order. So the state that explains the second change must not be older than the oldest
    one that explains the first. A new leader may act on state that is older than what its predecessor saw. So may a
    process that reads the counts of several ReplicaSets: each is in order, and some are older than others.
    """
    facts, by = step.facts, step.controller
    for of, now, was in step.conditions():
        before = was.status if was is not None else "False"
        claims = claims_of(of.key.kind, now.type)
        if before == now.status or claims is None or not _is_judged(of, by):
            continue
        place, content = (of.uid, now.type), content_of(facts, of)
        earlier = facts.conditions.flips.get(place)
        same = earlier is not None and earlier.content == content
        since_s = step.lag_begin_s
        in_order = len(facts.tallies.sets_of(of.uid)) == 1
        if earlier is not None and same and in_order and earlier.process == step.process:
            since_s = max(since_s, earlier.seen_s)
        found = ConditionEvidence(facts, of, now, since_s, step.now_s, by, earlier)
        claim = claims.of(now.status) if now.reason != REMOVED else None
        seen_s = since_s if claim is None else found.earliest(claim)
        explained = seen_s is not None
        facts.conditions.flips[place] = ConditionFlip(
            step.now_s, since_s if seen_s is None else seen_s, step.process, before, content, explained
        )
        if earlier is None or earlier.before != now.status:
            continue
        why = claim(found) if claim is not None and not explained else ""
        if not why and not earlier.explained:
            why = f"nothing explained that it was {before}"
        if not why and claims.back is not None and same:
            why = claims.back(found)
        if why:
            back = f"turned from {now.status} to {before} and back within {step.now_s - earlier.at_s:.1f}s"
            yield f"{of.key.kind} {now.type}", f"{now.type} of {of.key} {back} ({now.reason}), but {why}"
