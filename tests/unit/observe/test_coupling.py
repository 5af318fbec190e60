"""Coupling from records made by hand: counts alone, declarations, breakers and budgets; and the forms of the answer."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kit.records import BEGAN, call, decision, pod, read

from kedge.keys import Key, Origin
from kedge.observe.readers.coupling import (
    EXISTENCE,
    NOT_SEEN,
    Basis,
    Coupling,
    DeclaredComponent,
    EdgeVerdict,
    FieldId,
    Waking,
    coupling_of,
)
from kedge.observe.readers.coupling.fields import changed_fields, path_of, touches
from kedge.observe.readers.coupling.perturbation import changed_versions
from kedge.observe.readers.coupling.traffic import requested_fields
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CountsRecord, CoverageRecord, Decision, FieldCount

POD = Key("Pod", "default", "a")


def counts(*rows: FieldCount, deciders: tuple[str, ...] = (), process: str = "p") -> CountsRecord:
    return CountsRecord(process, BEGAN, BEGAN + timedelta(minutes=10), rows, deciders, 16)


def reader_rows(*fields: str) -> list[FieldCount]:
    return [
        FieldCount("reader", "get", "Pod", "*", 9),
        *(FieldCount("reader", "touch", "Pod", field, 4) for field in fields),
    ]


def test_counts_alone_make_edges_that_are_marked_so() -> None:
    rows = reader_rows("status.phase", "spec.nodeName")
    rows += [
        FieldCount("writer", "patch status", "Pod", "status.phase", 7),
        FieldCount("writer", "patch", "Pod", "x", 1),
    ]
    found = coupling_of(Recording(counts=[counts(*rows)]), "reader")
    (edge,) = found.edges
    assert (edge.writer, edge.field, edge.writes, edge.reads) == ("writer", "status.phase", 7, 4)
    assert (edge.basis, edge.transfers, edge.waking) == (Basis.COUNTS, 0, Waking.UNKNOWN)
    assert any("by counts: no kept decision has an object of both" in line for line in found.lines())


def test_a_wake_up_in_the_counts_makes_an_edge_watched_and_its_absence_silent() -> None:
    rows = [*reader_rows("status.phase"), FieldCount("reader", "wake", "Pod", "one", 2)]
    rows += [FieldCount(name, "patch", "Pod", "status.phase", 1) for name in ("one", "two")]
    found = coupling_of(Recording(counts=[counts(*rows)]), "reader")
    assert {each.writer: each.waking for each in found.edges} == {"one": Waking.WATCHED, "two": Waking.SILENT}


def test_counts_of_one_run_replace_each_other_and_those_of_two_runs_add_up() -> None:
    row = FieldCount("writer", "patch", "Pod", "status.phase", 3)
    later = FieldCount("writer", "patch", "Pod", "status.phase", 5)
    records = [
        counts(*reader_rows("status.phase"), row),
        counts(later),
        counts(FieldCount("writer", "patch", "Pod", "status.phase", 2), process="another"),
    ]
    (edge,) = coupling_of(Recording(counts=records), "reader").edges
    assert edge.writes == 7


def test_a_creation_and_a_deletion_concern_every_reader_of_the_kind() -> None:
    rows = [*reader_rows(), FieldCount("maker", "ensure", "Pod", "spec.containers", 2)]
    rows.append(FieldCount("remover", "delete", "Pod", "*", 1))
    found = coupling_of(Recording(counts=[counts(*rows)]), "reader")
    assert [(each.writer, each.field) for each in found.edges] == [("maker", EXISTENCE), ("remover", EXISTENCE)]


def test_declared_edges_are_marked_and_are_added_only_where_no_record_has_one() -> None:
    rows = [*reader_rows("status.phase"), FieldCount("writer", "patch status", "Pod", "status.phase", 7)]
    declared = [
        DeclaredComponent("reader", frozenset({"Pod"}), frozenset({"Pod", "Node"}), frozenset()),
        DeclaredComponent("writer", frozenset(), frozenset(), frozenset({("Pod", "status"), ("Node", "status")})),
        DeclaredComponent("elsewhere", frozenset(), frozenset(), frozenset({("Job.batch", "status")})),
    ]
    recording = Recording(counts=[counts(*rows)])
    found = coupling_of(recording, "reader", declared=declared)
    assert [(each.kind, each.field, each.basis, each.waking) for each in found.edges] == [
        ("Pod", "status.phase", Basis.COUNTS, Waking.UNKNOWN),
        ("Node", "status", Basis.DECLARED, Waking.SILENT),
    ]
    assert len(coupling_of(recording, "reader").edges) == 1
    assert any("not seen in this window; declared" in line for line in found.lines())


def test_a_right_to_change_an_object_adds_no_edge_beside_a_recorded_change_of_its_spec() -> None:
    rows = [*reader_rows("spec.nodeName"), FieldCount("writer", "bind", "Pod", "spec.nodeName", 7)]
    declared = [
        DeclaredComponent("reader", frozenset(), frozenset({"Pod"}), frozenset()),
        DeclaredComponent("writer", frozenset(), frozenset(), frozenset({("Pod", "*"), ("Pod", "existence")})),
    ]
    found = coupling_of(Recording(counts=[counts(*rows)]), "reader", declared=declared)
    assert [(each.field, each.basis) for each in found.edges] == [
        ("spec.nodeName", Basis.COUNTS),
        ("existence", Basis.DECLARED),
    ]


# -- limits ----------------------------------------------------------------------------------------


def limits(decisions: list[Decision], reader: str = "reader", deciders: tuple[str, ...] = ("p-1",)) -> list[Any]:
    recording = Recording(decisions=decisions, counts=[counts(deciders=deciders)])
    return [(each.limit, each.writer, each.times, each.uses) for each in coupling_of(recording, reader).limits]


def test_a_breaker_couples_the_components_of_one_process() -> None:
    failing = decision("w-1", [call(outcome="Unavailable"), call(outcome="OutcomeUnknown")], controller="writer")
    held = decision("r-1", [call(outcome="HeldOff")], controller="reader", began=BEGAN + timedelta(seconds=5))
    assert limits([failing, held]) == [("breaker", "writer", 1, 2)]
    assert limits([failing, held], "writer") == []
    assert limits([failing, held], deciders=("elsewhere",)) == []
    late = decision("w-2", [call(outcome="Unavailable")], controller="writer", began=BEGAN + timedelta(seconds=9))
    assert limits([held, late]) == []


def test_a_budget_couples_those_that_end_pods_beside_it() -> None:
    evict = call("evict", POD, {}, outcome="TooManyRequests")
    ended = call("delete", POD, {}, outcome="removed", revision=7, reply=(pod("a", 7),))
    elsewhere = call("delete", Key("Pod", "other", "a"), {}, outcome="removed", revision=8)
    decisions = [
        decision("r-1", [evict], controller="reader"),
        decision("w-1", [ended], controller="writer"),
        decision("o-1", [elsewhere], controller="other"),
    ]
    assert limits(decisions) == [("budget", "writer", 1, 1)]


def test_a_quota_in_a_log_without_commits_couples_those_that_create_beside_it() -> None:
    message = {"message": 'pods "a" is forbidden: exceeded quota: compute, requested: pods=1'}
    refused = replace(call("create", POD, {}, outcome="Forbidden"), error=message)
    made = call("ensure", POD, {}, revision=7, reply=(pod("a", 7),))
    decisions = [decision("r-1", [refused], controller="reader"), decision("w-1", [made], controller="writer")]
    assert limits(decisions) == [("quota", "writer", 1, 1)]


# -- objects ---------------------------------------------------------------------------------------


def kept(**more: Any) -> Recording:
    """One write of a pod and one read of it, with every decision kept."""
    written = pod("a", 7, origin=Origin("op-1", "writer:p:1"))
    decisions = [
        decision("writer:p:1", [call("patch", POD, {"spec": {"nodeName": "n"}}, revision=7, reply=(written,))],
                 controller="writer", key=POD),
        decision("reader:p:1", [read(written)], controller="reader", touched={"Pod": ("spec.nodeName",)},
                 wakes=(("Pod/default/a", "writer"),), began=BEGAN + timedelta(seconds=60), **more),
    ]  # fmt: skip
    covered = CoverageRecord("p", BEGAN, BEGAN, len(decisions), {"sample": len(decisions)}, 1)
    return Recording(decisions=decisions, coverages=[covered])


def test_a_log_without_counts_is_read_from_its_kept_decisions() -> None:
    found = coupling_of(kept(), "reader")
    (edge,) = found.edges
    assert (edge.writer, edge.field, edge.waking) == ("writer", "spec.nodeName", Waking.WATCHED)
    assert (edge.basis, edge.transfers, edge.objects) == (Basis.OBJECTS, 1, ("Pod/default/a",))
    assert any("the records have no counts" in line for line in found.coverage)


def test_one_decision_has_the_inputs_that_it_read() -> None:
    recording = kept()
    found = coupling_of(recording, "reader", decision=recording.decisions[1])
    assert [(each.writer, each.field) for each in found.edges] == [("writer", "spec.nodeName")]
    assert found.document()["decision"] == "reader:p:1"


# -- forms -----------------------------------------------------------------------------------------


def test_the_document_has_its_members_and_is_json() -> None:
    found = coupling_of(kept(), "reader").with_verdicts(
        {FieldId("writer", "Pod", "spec.nodeName"): EdgeVerdict(decisive=True, text="it deletes the pod")}
    )
    document = json.loads(json.dumps(found.document()))
    assert list(document) == [
        "apiVersion", "kind", "controller", "decision", "edges", "paths", "cycles", "fights", "sharedLimits",
        "coverage", "absentEdges",
    ]  # fmt: skip
    assert (document["apiVersion"], document["kind"]) == ("kedge.dev/v1", "Coupling")
    (edge,) = document["edges"]
    assert edge == {
        "writer": "writer", "reader": "reader", "kind": "Pod", "field": "spec.nodeName", "changes": "watched",
        "basis": "objects", "readsDeclared": False, "writes": 1, "reads": 1, "transfers": 1,
        "objects": ["Pod/default/a"], "decisive": True, "verdict": "it deletes the pod",
    }  # fmt: skip


def test_the_text_ends_with_the_meaning_of_an_absent_edge() -> None:
    assert next(iter(coupling_of(kept(), "writer").lines())) == "no coupling of writer was seen in this window"
    assert [*coupling_of(kept(), "reader").lines()][-1] == NOT_SEEN
    assert coupling_of(kept(), "reader").document()["absentEdges"] == NOT_SEEN


def test_the_drawing_marks_silent_and_decisive_edges_and_quotes_names() -> None:
    found = coupling_of(kept(), "reader")
    assert '"writer" -> "reader" [label="Pod spec.nodeName", style=solid];' in found.dot()
    silent = Recording(counts=[counts(*reader_rows("status.phase"), FieldCount("reader", "wake", "Node", "x", 1),
                                      FieldCount('odd "name"', "patch", "Pod", "status.phase", 1))])  # fmt: skip
    drawn = coupling_of(silent, "reader").dot()
    assert '"odd \\"name\\"" -> "reader" [label="Pod status.phase", style=dashed];' in drawn
    assert drawn.startswith("digraph coupling {")
    assert drawn.endswith("}")
    assert isinstance(found, Coupling)


def test_the_drawing_has_the_coverage_as_its_label_and_as_comments() -> None:
    found = dataclasses.replace(coupling_of(kept(), "reader"), coverage=('coverage: 3 "kept"', "missing: a part"))
    lines = found.dot().splitlines()
    assert lines[1:4] == ['  // coverage: 3 "kept"', "  // missing: a part", f"  // {NOT_SEEN}"]
    label = rf'  label="coverage: 3 \"kept\"\lmissing: a part\l{NOT_SEEN}\l"; labelloc=b; labeljust=l;'
    assert label in lines


# -- fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("touched", "written", "seen"),
    [
        ("spec.nodeName", "spec.nodeName", True),
        ("spec.nodeName", "spec.containers", False),
        ("*", "spec.nodeName", True),
        ("*", EXISTENCE, False),
        (EXISTENCE, EXISTENCE, True),
        ("metadata.labels.*", "metadata.labels.app", True),
        ("metadata.labels.app", "metadata.labels.*", True),
        ("metadata.labels.app", "metadata.annotations.app", False),
    ],
)
def test_which_writes_a_reader_sees(touched: str, written: str, *, seen: bool) -> None:
    assert touches(touched, written) is seen


def test_a_json_patch_writes_fields_two_levels_deep() -> None:
    patch = [
        {"op": "replace", "path": "/spec/template/spec/containers", "value": []},
        {"op": "add", "path": "/metadata/labels/example.org~1tier", "value": "x"},
    ]
    assert requested_fields(call(intent=patch)) == {"spec.template", "metadata.labels.example.org/tier"}


def test_a_label_s_key_may_have_dots() -> None:
    assert path_of("metadata.labels.example.org/tier") == ("metadata", "labels", "example.org/tier")
    assert path_of("spec.nodeName") == ("spec", "nodeName")
    assert path_of("data") == ("data",)


def test_other_values_come_from_other_versions_first_and_keep_the_revision() -> None:
    one, other = pod("a", 1), pod("a", 2, text="other")
    assert next(changed_versions(one, "spec.is", [other]))[0] == "if it were 'other'"
    tried = list(changed_versions(one, "metadata.labels.tier", [other]))
    assert [text for text, _ in tried] == ["if it were 'kedge-other'", "if it were ''"]
    assert all(each is not None and each.revision == one.revision for _, each in tried)
    assert [text for text, each in changed_versions(one, EXISTENCE, [])] == ["if it were absent"]
    assert changed_fields(None, one) >= {EXISTENCE}
    assert changed_fields(one, one) == frozenset()
