"""`kedge why` and `kedge timeline` over a kept run of the lesson's incident: golden text, recheck, and changed inputs.

`pytest tests/scenarios/test_explain.py --rewrite-stories` writes the golden file again. Revisions, ids and hashes are
those of the run, so the comparison ignores them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.kit.explanations import ADVICE, debug_view_fields, old_cache
from tests.kit.scenarios import masked

from kedge.api.wellknown import POD_KIND
from kedge.cli import main
from kedge.cli.kept_decisions import NO_LOGS, REPORTS, recheck_decisions
from kedge.kept import Section, parse_section, write_kept
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision, RecordEncoder
from kedge.sim.scenario import ScenarioRun, keep_run, load_scenario, run_scenario

GOLDEN = Path(__file__).parent / "explanations" / "pending-after-rollback.txt"


@cache
def incident() -> ScenarioRun:
    return run_scenario(load_scenario("pending-after-rollback"), keep=True)


def freed_at(recording: Recording) -> int:
    """The revision at which the quota was free, and the scheduler had not seen it."""
    report = Key(POD_KIND, "risk", "risk-report")
    return next(each.revision for each in recording.commits if report in each.deleted)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_run(incident(), tmp_path_factory.mktemp("kept"))


def kedge(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def why(kept: Path, name: str, *more: str) -> Result:
    revision = str(freed_at(incident().recording))
    return kedge("why", name, "-n", "risk", "--recording", str(kept), "--revision", revision, *more)


def test_the_answer_about_the_lesson_s_incident_is_the_golden_one(kept: Path, request: pytest.FixtureRequest) -> None:
    done = why(kept, "risk-api")
    assert done.exit_code == 0, done.output
    if request.config.getoption("--rewrite-stories"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(done.output, encoding="utf-8")
    assert unnumbered(done.output) == unnumbered(GOLDEN.read_text(encoding="utf-8")), "see --rewrite-stories"


def test_timeline_coupling_and_steps_answer_as_of_a_moment(kept: Path) -> None:
    revision = freed_at(incident().recording)
    asked = ("--recording", str(kept), "--at", str(revision))

    def revisions(*at: str) -> list[int]:
        document = json.loads(kedge("timeline", "risk-api", "-n", "risk", *at, "-o", "json").output)
        return [each["revision"] for each in document["entries"] if each["revision"]]

    assert max(revisions(*asked[:2])) > revision
    assert max(revisions(*asked)) <= revision
    edges = [
        json.loads(kedge("coupling", "deployment", *each, "-o", "json").output)["edges"] for each in (asked[:2], asked)
    ]
    assert 0 < len(edges[1]) <= len(edges[0])
    stepped = kedge("replay", str(kept), "--step", "--from", str(revision - 20), "--until", str(revision)).output
    assert "    again    same\n" in stepped
    assert "    decided  none of 3 nodes: " in stepped
    assert "DIFFERS" not in stepped


def unnumbered(text: str) -> list[str]:
    for pattern, instead in (
        (r"\bscheduler:[0-9a-f]{8}:\d+", "scheduler:ID"),
        (r"\b(at|was at) \d+\b", r"\1 REV"),
        (r"\b\d+\.\d s old", "AGE"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"\b\d+ (decisions|by sample|by failure|by retry|s before|attempts)", r"N \1"),
        (r"\bof \d+ that ended", "of N that ended"),
    ):
        text = re.sub(pattern, instead, text)
    return masked(text)


@pytest.mark.parametrize("field", debug_view_fields("node-c12", generation=42))
def test_the_golden_answer_has_every_field_of_the_lesson_s_debug_view(field: str) -> None:
    assert re.search(field, GOLDEN.read_text(encoding="utf-8"), re.M)


def test_the_first_sentence_names_the_stale_quota_cache_and_advises_to_wait() -> None:
    first = GOLDEN.read_text(encoding="utf-8").splitlines()[0]
    assert re.search(old_cache("node-c12"), first)
    assert first.endswith(ADVICE)


# -- recheck -----------------------------------------------------------------------------------------


def test_every_decision_of_the_run_is_run_again_and_agrees() -> None:
    recording = incident().recording
    report = asyncio.run(recheck_decisions(recording.decisions, recording))
    assert report.differences == ()
    reports = sum(bool(each.part_of) for each in recording.decisions)
    by_agents = sum(each.pod_run is not None for each in recording.decisions)
    assert by_agents > 0
    assert report.agreed == len(recording.decisions) - reports, "the syncs of agents too"
    assert report.skipped == {REPORTS: reports}


def test_a_recheck_of_an_answer_states_how_many_agree(kept: Path) -> None:
    done = why(kept, "risk-api", "--recheck")
    assert done.exit_code == 0, done.output
    assert re.search(r"^  recheck +\d\d decisions were run again and agree$", done.output, re.M)


def test_a_record_that_differs_fails_the_command_and_names_the_difference(kept: Path, tmp_path: Path) -> None:
    found = incident().recording
    changed = Recording(
        found.states, found.commits, [untrue(each) for each in found.decisions], found.received, found.outside
    )
    path = tmp_path / kept.name
    write_kept(path, sections_of(changed))
    done = why(path, "risk-api", "--recheck")
    assert done.exit_code == 1
    assert re.search(r"DIFFERS: attempt \S+ for Pod/risk/\S+: nodes is 3 now, and was 4$", done.output, re.M)


def untrue(decision: Decision) -> Decision:
    """The record with another number of nodes, if it is of an attempt that found none."""
    attempt = decision.scheduling
    if attempt is None or attempt.choice is None or attempt.choice.node is not None:
        return decision
    choice = msgspec.structs.replace(attempt.choice, nodes=4)
    return msgspec.structs.replace(decision, scheduling=msgspec.structs.replace(attempt, choice=choice))


def sections_of(recording: Recording) -> Iterator[Section]:
    encoder = RecordEncoder()
    for state in recording.states:
        yield from map(parse_section, encoder.state(state))
    for event in recording.outside:
        yield from map(parse_section, encoder.outside(event))
    for commit in recording.commits:
        yield from map(parse_section, encoder.commit(commit))
    for part in recording.received:
        yield from map(parse_section, encoder.received(part))
    for decision in recording.decisions:
        yield from map(parse_section, encoder.decision(decision) or [])


def test_without_received_logs_controllers_are_rechecked_from_their_records_and_attempts_are_named() -> None:
    """As in the decision log of a running cluster."""
    recording = incident().recording
    bare = Recording(outside=recording.outside, decisions=recording.decisions)
    report = asyncio.run(recheck_decisions(recording.decisions, bare))
    attempts = sum(each.scheduling is not None for each in recording.decisions)
    assert report.differences == ()
    reports = sum(bool(each.part_of) for each in recording.decisions)
    assert report.skipped == {NO_LOGS: attempts, REPORTS: reports}
    assert report.agreed == len(recording.decisions) - attempts - reports > 0


# -- changed inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("quota/risk.zone-c.cpu=+2", r"\S+ would be placed on node-c12, the only feasible node"),
        ("quota/risk.zone-c.cpu=+100m", r"the same as without it: \S+ would be pending: none of 3 nodes would fit"),
        ("node/node-d1=cpu:8,memory:32Gi,zone:zone-d", r"\S+ would be placed on node-d1, the only feasible node"),
        ("policy/scheduler-policy=v5", r"\S+ would be pending: none of 3 nodes would fit"),
        ("pod/risk-report=-", r"the same as without it: \S+ would be pending: none of 3 nodes would fit"),
    ],
)
def test_the_last_attempt_is_decided_again_with_another_input(kept: Path, change: str, outcome: str) -> None:
    done = why(kept, "risk-api", "--what-if", change)
    assert done.exit_code == 0, done.output
    shown = re.findall(rf"^  what if +{re.escape(change)}: (.*)$", done.output, re.M)
    assert shown, done.output
    assert any(re.match(outcome, each) for each in shown), shown
    assert any(each.startswith("the same as") for each in shown) == outcome.startswith("the same as")


def test_a_change_that_cannot_be_made_is_one_sentence(kept: Path) -> None:
    done = why(kept, "risk-api", "--what-if", "the quota is larger")
    assert (done.exit_code, "is no change of an input: write it as one of quota/" in done.output) == (2, True)
    done = why(kept, "risk-api", "--what-if", "taint/node-c12/dedicated=-")
    assert (done.exit_code, "node node-c12 has no taint dedicated" in done.output) == (1, True)


# -- the timeline ------------------------------------------------------------------------------------


def test_the_timeline_of_a_generation_has_its_people_its_fault_and_the_late_quota(kept: Path) -> None:
    words = ("timeline", "deploy/risk-api", "-n", "risk", "--recording", str(kept), "--generation", "42")
    done = kedge(*words)
    assert done.exit_code == 0, done.output
    assert re.search(r" +\d+  \* user +Deployment risk-api changed: 8 replicas .*generation 42$", done.output, re.M)
    assert re.search(r"  ! faults +the watch of ZoneQuota.kedge.dev to default-scheduler is 30s late", done.output)
    assert re.search(
        r"because of ZoneQuota risk by agent-node-c12, written at rv \d+, seen \d+\.\d s later", done.output
    )
    assert "no node for Pod/risk/" in done.output
    assert re.search(r"^window: generation 42 from ", done.output, re.M)
    document = json.loads(kedge(*words, "-o", "json").output)
    assert document["kind"] == "Timeline"
    revisions = [each["revision"] for each in document["entries"] if each["revision"]]
    assert revisions == sorted(revisions)
    trace = json.loads(kedge(*words, "-o", "perfetto").output)
    assert {each["ph"] for each in trace["traceEvents"]} == set("MXisf")


def test_the_timeline_as_spans_links_an_attempt_to_the_decision_that_made_its_pod(kept: Path) -> None:
    done = kedge("timeline", "deploy/risk-api", "-n", "risk", "--recording", str(kept), "-o", "otlp")
    document = json.loads(done.output)
    # Ids are hexadecimal in OTLP's JSON, and base64 in protobuf's: everything else is protobuf's own mapping.
    hexadecimal = re.compile(r'("(?:traceId|spanId|parentSpanId)": )"([0-9a-f]+)"')
    mapped = hexadecimal.sub(
        lambda found: f'{found[1]}"{base64.b64encode(bytes.fromhex(found[2])).decode()}"', json.dumps(document)
    )
    request = Parse(mapped, ExportTraceServiceRequest())
    for each in request.resource_spans:
        (covered,) = (found.value.string_value for found in each.resource.attributes if found.key == "kedge.coverage")
        window, coverage = covered.split("\n")
        assert window.startswith("window: everything from the beginning of the records")
        assert re.match(r"coverage: \d+ decisions kept from .* were counted and not kept", coverage)
    spans = [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
    roots = {bytes(span.span_id): span for span in spans if not span.parent_span_id}
    assert all(bytes(span.parent_span_id) in roots for span in spans if span.parent_span_id)
    attempts = [span for span in roots.values() if span.name == "default-scheduler Pod"]
    linked = [
        roots[bytes(link.span_id)].name for span in attempts for link in span.links if bytes(link.span_id) in roots
    ]
    assert "replicaset ReplicaSet" in linked
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


def test_a_timeline_without_records_is_one_sentence(kept: Path) -> None:
    done = kedge("timeline", "stranger", "--recording", str(kept))
    assert done.exit_code == 1
    assert "no record about stranger in the namespace default was kept at all" in done.output
    done = kedge("timeline", "risk-api", "-n", "risk", "--recording", str(kept), "--generation", "77")
    assert "was kept in this window" in done.output
