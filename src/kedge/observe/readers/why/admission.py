"""The policies behind an object: what admission changed in it, and what it refused of a workload's pods. Pure.

Records have every policy with its revision; without one, the annotation that mutating policies leave is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from kedge.api.objects import Object
from kedge.api.wellknown import MUTATIONS_ANNOTATION
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.records import AdmissionAct, Decision

REFUSALS_MAX: Final = 3
"""The latest refusals that an answer about a workload lists."""


class _Mutation(msgspec.Struct):
    policy: str
    revision: int
    paths: tuple[str, ...]


def admission_lines(found: Object, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """One line for each change that a policy made to the object."""
    made = [each for each in evidence.about(found.key, found.uid) if each.admission is not None and not each.error]
    acts = list(dict.fromkeys(act for each in made for act in admission_acts(each)))
    for act in acts or _annotated(found):
        yield EvidenceLine("admission", str(act))


def refusal_lines(owners: set[str], evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """The latest objects of these owners that admission refused: they do not exist, so nothing else shows them."""
    made = [
        each
        for each in evidence.decisions
        if each.admission is not None and each.error and each.admission.owner_uid in owners
    ]
    for each in made[-REFUSALS_MAX:]:
        yield EvidenceLine("refused", refusal_text(each))


def refusal_text(decision: Decision) -> str:
    """A refusal with the policies behind it, and the number of equal ones that were not recorded."""
    write = decision.admission
    repeats = f"; {write.repeats} equal refusals before it" if write is not None and write.repeats else ""
    acts = "; ".join(str(each) for each in admission_acts(decision) if each.verb == "refused")
    why = acts or decision.error.partition(": ")[2]
    return f"{decision.began:%H:%M:%S} {decision.key}: {why}{repeats}, decision {decision.id}"


def admission_acts(decision: Decision) -> Iterator[AdmissionAct]:
    return (step for step in decision.steps if isinstance(step, AdmissionAct))


def _annotated(found: Object) -> Iterator[AdmissionAct]:
    text = found.metadata.annotations.get(MUTATIONS_ANNOTATION, "")
    try:
        mutations = msgspec.json.decode(text, type=list[_Mutation]) if text else []
    except msgspec.MsgspecError:
        return  # a user may have written anything there
    for each in mutations:
        yield AdmissionAct(each.policy, each.revision, "changed", ", ".join(each.paths))
