"""The write behind a condition, from a whole history or from the versions in kept decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.kit.records import BEGAN, call, decision, made, read

from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import ClusterEvidence, ConditionWrite, asking, evidence_of, why_pod, write_in_decisions
from kedge.observe.readers.why.conditions import NO_RECORD
from kedge.observe.records import AdmissionAct, AdmittedWrite, CommitRecord, Decision, PodAct, PodRun, StoreState

POD = Key("Pod", "default", "web-0")


def version(revision: int, decided: str, **conditions: str) -> Object:
    listed = [{"type": name, "status": status} for name, status in conditions.items()]
    return made("Pod", "web-0", revision, decided, status={"phase": "Running", "conditions": listed})


FIRST = version(5, "default-scheduler:p:1", PodScheduled="True")
SECOND = version(8, "agent-node-1:p:1", PodScheduled="True", Ready="False")
THIRD = version(9, "agent-node-1:p:2", PodScheduled="True", Ready="True")


def lines_of(evidence: ClusterEvidence, label: str = "conditions") -> list[str]:
    found = evidence.objects[POD]
    return [each.text for each in why_pod(found, evidence).evidence if each.label == label]


def history(*versions: Object, start: tuple[Object, ...] = ()) -> Recording:
    commits = [CommitRecord(each.revision, BEGAN, (each,)) for each in versions]
    return Recording(states=[StoreState(1, BEGAN, start)], commits=commits)


def test_in_a_history_each_condition_names_the_version_and_the_decision_that_wrote_it() -> None:
    assert lines_of(evidence_of(history(FIRST, SECOND, THIRD))) == [
        f"PodScheduled=True; written at revision 5 by default-scheduler, decision default-scheduler:p:1{NO_RECORD}",
        f"Ready=True; written at revision 9 by agent-node-1, decision agent-node-1:p:2{NO_RECORD}",
    ]


def test_a_decision_that_was_cut_off_or_not_kept_is_shown_without_a_record() -> None:
    whole = history(FIRST, SECOND, THIRD)
    whole.decisions.append(decision("default-scheduler:p:1", key=POD))
    scheduled, ready = lines_of(evidence_of(whole))
    assert scheduled.endswith("decision default-scheduler:p:1")
    assert ready.endswith("decision agent-node-1:p:2 (no record here: it was cut off or not kept)")
    part = replace(evidence_of(whole), has_record=lambda found: found == "agent-node-1:p:2")
    scheduled, ready = lines_of(part)
    assert "no record here" in scheduled
    assert "no record here" not in ready


def test_a_condition_that_was_there_at_the_start_of_a_history_may_be_older() -> None:
    (first, _) = lines_of(evidence_of(history(SECOND, THIRD, start=(FIRST,))))
    assert "there at the latest since revision 5" in first


def test_in_kept_decisions_the_oldest_equal_version_counts_and_may_not_be_the_first() -> None:
    kept = [decision("d-1", [read(FIRST)]), decision("d-2", [call(reply=(THIRD,), revision=9)])]
    assert write_in_decisions(THIRD, "PodScheduled", kept) == ConditionWrite(5, FIRST.origin, exact=False)
    assert write_in_decisions(THIRD, "Missing", kept) is None
    assert str(ConditionWrite(5, Origin(caller="ada"))) == "written at revision 5 by ada"


def test_a_first_answer_notes_the_conditions_to_ask_for() -> None:
    asked: list[tuple[Key, str]] = []
    evidence = ClusterEvidence({POD: THIRD}, (), BEGAN, condition_write=asking(asked))
    assert lines_of(evidence) == ["PodScheduled=True", "Ready=True"]
    assert asked == [(POD, "PodScheduled"), (POD, "Ready")]


def of_pod(name: str, *steps: Any, **fields: Any) -> Decision:
    return decision(name, list(steps), key=POD, uid=THIRD.uid, **fields)


def test_a_pod_shows_its_run_its_agents_acts_and_the_policies_that_changed_it() -> None:
    run = PodRun("node-1", "0123456789", 77)
    acts = of_pod("agent-node-1:p:1", PodAct("start", "main"), PodAct("back off", "main", delay_s=10), pod_run=run)
    changed = AdmissionAct("cost", 41, "changed", "/metadata/labels/team")
    admitted = of_pod("admission:p:1", changed, admission=AdmittedWrite("ada", (), "", 5, ""))
    evidence = ClusterEvidence({POD: THIRD}, (admitted, acts), BEGAN)
    assert lines_of(evidence, "run") == ["on node-1, incarnation 01234567, bind proved at revision 77"]
    assert [each.partition(" ")[2] for each in lines_of(evidence, "agent")] == [
        "start main, decision agent-node-1:p:1",
        "back off main, 10 s, decision agent-node-1:p:1",
    ]
    assert lines_of(evidence, "admission") == ["cost at revision 41 changed /metadata/labels/team"]
