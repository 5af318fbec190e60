"""The placement of a pod in words: its blockers, every node by name, now or never, its gang and its preemptor. Pure.

Tiers follow the reason codes of blockers, never their texts. A record of before has no codes: its pods only wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kedge.api.objects import Object
from kedge.api.wellknown import GANG_LABEL, NODE_KIND, POD_KIND
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.records import AttemptChoice, Decision, NodeAccount, SchedulingAttempt

ONLY_PEOPLE_CHANGE: Final = frozenset({"NodeName", "NodeSelector", "NodeAffinity", "Taint"})
"""Reason codes that no other pod's end removes. A pod that nothing else keeps off a node waits for a person."""
NEVER_ALONE: Final = ONLY_PEOPLE_CHANGE | {"Resource"}
"""Reason codes that keep a pod off an empty node for as long as neither changes."""
NODES_MAX: Final = 10
"""Nodes that are named for one blocker; the others are counted."""
RUNNERS_UP_MAX: Final = 3


def reasons_text(account: NodeAccount | None) -> str:
    """The blockers with their counts: "2 taint, 1 cpu"."""
    return "" if account is None else ", ".join(f"{count} {blocker}" for blocker, count in account.counts.items())


def placement_text(name: str, choice: AttemptChoice, account: NodeAccount) -> str:
    """The outcome of an attempt that was run again."""
    if choice.node is not None:
        count = "the only feasible node" if choice.feasible == 1 else f"the best of {choice.feasible} feasible nodes"
        return f"{name} would be placed on {choice.node}, {count}, with score {choice.score}"
    return f"{name} would be pending: none of {choice.nodes} nodes would fit: {reasons_text(account)}"


def people_have_to_act(account: NodeAccount) -> bool:
    """Whether only a change of the pod or of the nodes can help."""
    empty = account.empty
    if empty is not None and not empty.fits and empty.reasons and NEVER_ALONE.issuperset(empty.reasons):
        return True
    return bool(account.reasons) and all(account.reason_of(blocker) in ONLY_PEOPLE_CHANGE for blocker in account.counts)


def now_or_never(account: NodeAccount) -> str:
    """Whether the pod would fit if the nodes were empty; empty text for a record that does not have it."""
    empty = account.empty
    if empty is None:
        return ""
    nodes = empty.fits + sum(empty.counts.values())
    others = ", ".join(f"{count} {blocker}" for blocker, count in empty.counts.items())
    if not nodes:
        return "there are no nodes"
    if not empty.fits:
        never = "never" if NEVER_ALONE.issuperset(empty.reasons) else "not as they are"
        return f"{never}: on none of {nodes} nodes, even if all were empty: {others}"
    if not others:
        return f"not now: it would fit on each of {nodes} nodes if they were empty"
    return f"not now: it would fit on {empty.fits} of {nodes} nodes if they were empty, and not on the others: {others}"


# -- every node --------------------------------------------------------------------------------------


def node_lines(decision: Decision, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """Each blocker with the nodes that it was the first to fail, and the best node without its only blocker."""
    attempt = decision.scheduling
    account = None if attempt is None else attempt.account
    if attempt is None or account is None:
        return
    named = _nodes_by_blocker(decision, account, evidence)
    for blocker, count in account.counts.items():
        names = named.get(blocker, ())
        more = f", and {len(names) - NODES_MAX} more" if len(names) > NODES_MAX else ""
        listed = f" ({', '.join(names[:NODES_MAX])}{more})" if names else ""
        yield EvidenceLine("nodes", f"{count}: {blocker}{listed}")
    if account.first_failing and not named and account.counts:
        yield EvidenceLine("nodes", "their names are not known: nodes were added or removed since the decision")
    if account.near_miss is not None:
        yield EvidenceLine("nearest", f"{account.near_miss.node}, but for {account.near_miss.blocker}")
    if attempt.choice is not None and attempt.choice.node is None and (text := now_or_never(account)):
        yield EvidenceLine("now or never", text)
    if attempt.excluded:
        yield EvidenceLine("excluded", f"{', '.join(attempt.excluded)}, which refused it a moment before")


def _nodes_by_blocker(decision: Decision, account: NodeAccount, evidence: ClusterEvidence) -> dict[str, list[str]]:
    """The names behind `first_failing`; empty if the nodes of then are not known."""
    revision = next((mark.revision for mark in decision.marks if mark.cache == NODE_KIND), 0)
    if evidence.nodes_at is not None:
        names = evidence.nodes_at(revision)
    else:
        names = [each.key.name for each in evidence.of_kind(NODE_KIND) if not revision or each.created <= revision]
    if len(names) != len(account.first_failing):
        return {}
    found: dict[str, list[str]] = {}
    for name, code in zip(names, account.first_failing, strict=True):
        if code:
            found.setdefault(account.legend[code - 1], []).append(name)
    return found


def choice_lines(attempt: SchedulingAttempt) -> Iterator[EvidenceLine]:
    """Why there: the score of the chosen node by part, and the runners-up."""
    if attempt.reserved_node:
        yield EvidenceLine("chosen", f"{attempt.reserved_node}, where a reservation held room for it")
    choice = attempt.choice
    if choice is None or choice.node is None:
        return
    yield EvidenceLine(
        "chosen", f"with score {choice.score} of {choice.feasible} feasible nodes, {choice.nodes} in all"
    )
    for each in attempt.account.top[: 1 + RUNNERS_UP_MAX] if attempt.account is not None else ():
        parts = ", ".join(f"{name} {points}" for name, points in each.parts.items())
        yield EvidenceLine("scores", f"{each.node} {each.total}: {parts}")


# -- gangs and preemption ----------------------------------------------------------------------------


class HeldBack(NamedTuple):
    """The member of a gang that fits on no node, so that no member is placed."""

    gang: str
    member: str
    reasons: str
    others: int
    """How many members wait with it."""


def held_back(pod: Object, evidence: ClusterEvidence) -> HeldBack | None:
    """The member that holds the gang of a pod back; None if it has no gang, or no record shows one."""
    gang = pod.metadata.labels.get(GANG_LABEL, "")
    if not gang:
        return None
    members = {
        each.key: each
        for each in evidence.of_kind(POD_KIND)
        if each.key.namespace == pod.key.namespace and each.metadata.labels.get(GANG_LABEL) == gang
    }
    last: Decision | None = None
    for decision in evidence.decisions:
        attempt = decision.scheduling
        if decision.key in members and attempt is not None and attempt.choice is not None:
            if attempt.choice.node is None:
                last = decision
            elif last is not None and last.key == decision.key:
                last = None  # it has found a node since
    if last is None or last.scheduling is None or last.scheduling.choice is None:
        return None
    reasons = reasons_text(last.scheduling.account) or last.reason
    text = f"none of {last.scheduling.choice.nodes} nodes fits: {reasons}"
    return HeldBack(gang, last.key.name, text, len(members) - 1)


def preemptions(pod_key: str, decisions: Sequence[Decision]) -> list[Decision]:
    """The attempts that preempted a pod, oldest first."""
    return [each for each in decisions if each.scheduling is not None and pod_key in each.scheduling.victims]
