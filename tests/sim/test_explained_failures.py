"""In simulated failures, removing the blocker that `kedge why` names changes the outcome, and every record rechecks.

The blocker of the nearest node is removed from the inputs of the attempt, and the attempt is decided again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from tests.kit.disturbed_fleet import FAULTS, disturbed_fleet

from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.keys import Key
from kedge.observe.readers.what_if import apply_changes, parse_change
from kedge.observe.readers.why import ClusterEvidence, why_pod
from kedge.observe.records import Decision, NodeAccount
from kedge.placement.reasons import Reason
from kedge.scheduler.report.recheck import Held, decide_again, held_at
from kedge.sim.kernel import Simulation, run

_LEFT_ALONE = {Reason.REFUSED_LATELY, Reason.NODE_SUSPECT, Reason.NODE_TERMINATING, Reason.POD_AFFINITY}
"""Blockers that no change of one object removes: a memory of the scheduler, evidence about a node, a missing pod."""


def removing(account: NodeAccount, pod: Object, held: Held) -> Iterator[str]:
    """The changes that remove the blocker of the nearest node."""
    assert account.near_miss is not None
    node, blocker, _ = account.near_miss
    reason = account.reason_of(blocker)
    found = held["Node"][Key("Node", "", node)].as_view(NodeView)
    match reason:
        case Reason.RESOURCE:
            yield f"node/{node}=+{blocker}:64"
        case Reason.ZONE_QUOTA:
            zone = blocker.rpartition("/")[2]
            for key, quota in held["ZoneQuota.kedge.dev"].items():
                for resource in quota.edit()["spec"]["zones"].get(zone, {}).get("hard", {}):
                    if key.namespace == pod.key.namespace:
                        yield f"quota/{key.name}.{zone}.{resource}=+64"
        case Reason.TAINT:
            yield from (f"taint/{node}/{taint.key}=-" for taint in found.spec.taints)
        case Reason.NODE_CORDONED:
            yield f"cordon/{node}=-"
        case Reason.NODE_SELECTOR:
            selector = pod.as_view(PodView).spec.node_selector
            yield from (f"label/{node}/{label}={value}" for label, value in selector.items())
        case _:
            # Rules about other pods: none of them is left.
            yield from (f"pod/{key.namespace}/{key.name}=-" for key in held["Pod"] if key != pod.key)


def named(decision: Decision, pod: Object, nodes: Mapping[Key, Object]) -> str:
    """The blocker in the answer."""
    assert decision.scheduling is not None
    pending = ClusterEvidence({**nodes, pod.key: pod}, [decision], decision.began)
    texts = [each.text for each in why_pod(pod, pending).evidence if each.label == "nearest"]
    found = re.fullmatch(r"(\S+), but for (.+)", texts[0]) if texts else None
    return found[2] if found is not None else ""


async def explained(sim: Simulation) -> Counter[str]:
    """The number of failed attempts whose outcome changed, by the code of the blocker, and of those that were left."""
    fleet = await disturbed_fleet(sim)
    rechecked = fleet.recheck()
    counts: Counter[str] = Counter({"rechecked": rechecked})
    for life in fleet.processes:
        logs = {cache.name: cache.received for cache in life.scheduler.caches}
        for decision in life.recorder.decisions():
            attempt = decision.scheduling
            if attempt is None or attempt.choice is None or attempt.choice.node is not None:
                continue
            account = attempt.account
            if account is None or account.near_miss is None:
                counts["no nearest node"] += 1
                continue
            held = held_at(decision, logs)
            pod = held["Pod"][decision.key]
            assert named(decision, pod, held["Node"]) == account.near_miss.blocker
            reason = account.reason_of(account.near_miss.blocker)
            if reason in _LEFT_ALONE:
                counts["left"] += 1
                continue
            changes = [parse_change(each) for each in removing(account, pod, held)]
            after, _ = decide_again(
                decision, apply_changes(changes, held, pod.key.namespace, lambda _: ()), life.scheduler._env
            )
            assert after.node is not None, f"{decision.id} about {decision.key}: {account.near_miss}, {changes}"
            counts[reason] += 1
    return counts


def explain_all(seeds: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(explained, seed, faults=FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        total.update(outcome.result or {})
    return total


def changed(counts: Counter[str]) -> int:
    return sum(count for reason, count in counts.items() if reason in set(Reason))


def test_without_the_blocker_that_why_names_the_pod_is_placed() -> None:
    counts = explain_all(range(8))
    assert changed(counts) >= 10, counts
    assert counts["rechecked"] > 40, counts


@pytest.mark.slow
def test_a_thousand_failures_change_without_the_blocker_that_why_names() -> None:
    counts = explain_all(range(350))
    assert changed(counts) >= 1000, counts
    assert {Reason.RESOURCE, Reason.ZONE_QUOTA, Reason.NODE_CORDONED} <= set(counts), counts
