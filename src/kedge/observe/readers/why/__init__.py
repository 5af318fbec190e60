"""Why an object is as it is, from objects and decision records: the reader behind `kedge why`."""

from kedge.observe.readers.why.answer import Answer, EvidenceLine, Tier
from kedge.observe.readers.why.condition_writes import ConditionWrite, asking, write_in_decisions
from kedge.observe.readers.why.debug_view import debug_view
from kedge.observe.readers.why.evidence import ClusterEvidence, RecordedWrite, evidence_of, writes_of
from kedge.observe.readers.why.placement import placement_text
from kedge.observe.readers.why.pod import why_gone, why_pod
from kedge.observe.readers.why.workload import why_object, why_workload

__all__ = [
    "Answer",
    "ClusterEvidence",
    "ConditionWrite",
    "EvidenceLine",
    "RecordedWrite",
    "Tier",
    "asking",
    "debug_view",
    "evidence_of",
    "placement_text",
    "why_gone",
    "why_object",
    "why_pod",
    "why_workload",
    "write_in_decisions",
    "writes_of",
]
