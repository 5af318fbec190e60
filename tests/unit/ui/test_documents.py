"""Documents of the page, made from a worked example: the pod that stays pending on a late quota."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.records import made

from kedge.cli.declared_components import declared_fields
from kedge.errors import BadRequest, NotFound
from kedge.observe.readers.recording import Recording
from kedge.observe.records import ReceivedChange, ReceivedEntry, ReceivedPart
from kedge.sim.scenario import load_scenario, run_scenario
from kedge.ui import Documents
from kedge.ui.beliefs import CachedComponent

SCHEDULER = "default-scheduler"
QUOTA = "ZoneQuota.kedge.dev/risk/risk"


@functools.cache
def documents() -> Documents:
    recording = run_scenario(load_scenario("pending-after-rollback"), keep=True).recording
    return Documents(recording, "an incident", declared_fields=declared_fields(recording))


def read(name: str, **parameters: object) -> dict[str, Any]:
    return documents().document(name, {key: str(value) for key, value in parameters.items()})


def late_attempt() -> dict[str, Any]:
    """The last attempt that found no node: its quota was old."""
    rows = read("decisions", limit=5000)["rows"]
    pending = read("decisions")["outcomes"].index("pending")
    found = [each for each in rows if each["outcome"] == pending and each["lane"] == SCHEDULER]
    assert found
    return read("decision", id=found[-1]["id"])


# -- time --------------------------------------------------------------------------------------------


def test_every_document_has_a_version_and_a_kind() -> None:
    for name in documents().names:
        attempt = late_attempt()
        found = read(name, id=attempt["id"], key=attempt["key"], t=attempt["t"])
        assert found["apiVersion"] == "kedge.dev/v1"
        assert found["kind"]
        assert found["schemaVersion"] == 1


def test_the_history_has_marks_of_people_faults_leaders_and_conditions() -> None:
    found = read("history")
    marks = {each["mark"]: each for each in found["marks"]}
    assert set(marks) == {"person", "fault", "leader", "condition"}
    assert [each["t"] for each in found["marks"]] == sorted(each["t"] for each in found["marks"])
    assert found["commits"]["t"] == sorted(found["commits"]["t"])
    assert len(found["commits"]["revision"]) == len(documents().history.recording.commits)


def test_pages_of_decisions_join_to_the_whole_list() -> None:
    whole = read("decisions", limit=5000)
    rows, after = [], 0
    while after is not None:
        page = read("decisions", after=after, limit=100)
        rows += page["rows"]
        after = page["next"]
    assert rows == whole["rows"]
    assert len(rows) == whole["total"]


def test_pages_of_the_story_join_to_the_whole_story() -> None:
    whole = read("story", limit=5000)
    first, second = read("story", limit=50), read("story", after=50, limit=5000)
    assert first["lines"] + second["lines"] == whole["lines"]


def test_a_point_of_a_revision_has_that_revision_and_its_time() -> None:
    history = documents().history
    for commit in history.commits[:50]:
        point = history.point(revision=commit.revision)
        assert point.revision == commit.revision
        assert history.point(t=point.t).revision >= commit.revision


# -- place -------------------------------------------------------------------------------------------


def test_the_place_at_a_revision_is_the_store_at_that_revision() -> None:
    attempt = late_attempt()
    found = read("place", t=attempt["t"])
    assert [each["name"] for each in found["zones"]] == ["zone-a", "zone-b", "zone-c"]
    pod = next(each for each in found["pods"] if each["key"] == attempt["key"])
    assert pod["stage"] == "queued"
    assert pod["node"] == ""
    bound = read("place")["pods"]
    placed = next(each for each in bound if each["key"] == attempt["key"])
    assert placed["node"] == "node-c12"
    assert placed["claim"].startswith("Bound on node-c12: cpu 900m")


def test_a_silent_node_is_shown_as_suspect_while_it_is() -> None:
    marks = [each["t"] for each in read("history")["marks"]]
    seen = {
        node["name"]
        for t in marks
        for zone in read("place", t=t)["zones"]
        for node in zone["nodes"]
        if node["suspect"] or node["ready"] != "True"
    }
    assert seen == {"node-b7"}


# -- belief ------------------------------------------------------------------------------------------


def test_the_belief_of_the_scheduler_lacks_the_write_that_freed_the_quota() -> None:
    attempt = late_attempt()
    found = read("belief", decision=attempt["id"])
    assert found["component"].startswith(SCHEDULER)
    quota = next(each for each in found["caches"] if each["cache"] == "ZoneQuota.kedge.dev")
    (row,) = quota["objects"]
    assert (row["key"], row["difference"], row["certain"]) == (QUOTA, "older", True)
    assert {each["path"]: (each["before"], each["after"]) for each in row["fields"]}[
        "status.zones.zone-c.used.cpu"
    ] == ("8", None)
    assert row["writer"].startswith("agent-")
    assert row["heldRevision"] < row["committedRevision"]


def test_a_belief_is_later_at_a_later_point() -> None:
    attempt = late_attempt()
    later = read("belief", component=SCHEDULER, t=attempt["t"] + 4_000_000)
    quota = next(each for each in later["caches"] if each["cache"] == "ZoneQuota.kedge.dev")
    assert 4.0 <= quota["lateSeconds"] < 5.0
    assert later["caches"][0] is quota or later["caches"][0]["lateSeconds"] >= quota["lateSeconds"]


def test_a_write_that_may_have_arrived_since_is_not_claimed_to_be_lacked() -> None:
    """Long after its last decision a component is not blamed for a write that was on the way then."""
    first = [each for each in documents().history.decisions if each.controller == SCHEDULER][:7]
    assert first
    after = documents().history.t_of(first[-1].began)
    later = read("belief", component=SCHEDULER, t=after + 30_000_000)
    rows = [row for cache in later["caches"] for row in cache["objects"]]
    assert rows
    assert not [each for each in rows if each["certain"]]


def test_a_write_that_came_with_a_later_list_is_lacked_until_then() -> None:
    """The list that brought the quota had a revision that the store reached later: it cannot have arrived before."""
    attempt = late_attempt()
    quota = {
        wait_s: next(
            each
            for each in read("belief", component=SCHEDULER, t=attempt["t"] + wait_s * 1_000_000)["caches"]
            if each["cache"] == "ZoneQuota.kedge.dev"
        )
        for wait_s in (1, 10, 20)
    }
    assert [[row["certain"] for row in each["objects"]] for each in quota.values()] == [[True], [True], [True]]


def test_a_belief_at_the_end_of_the_run_agrees_with_the_store() -> None:
    last = [each for each in documents().history.decisions if each.controller == SCHEDULER][-1]
    found = read("belief", decision=last.id)
    rows = [row for cache in found["caches"] for row in cache["objects"] if row["certain"]]
    assert len(rows) <= 1  # its own bind may be on the way


# -- decisions ---------------------------------------------------------------------------------------


def test_a_scheduling_attempt_accounts_for_every_node_by_name() -> None:
    found = late_attempt()["scheduling"]
    assert {each["node"] for each in found["nodes"]} == {"node-a4", "node-b7", "node-c12"}
    assert all(each["blocker"] for each in found["nodes"])
    assert found["nearest"] == {"node": "node-c12", "blocker": "zone quota risk/zone-c"}
    assert sum(each["nodes"] for each in found["blockers"]) == 3


def test_the_inputs_of_a_decision_have_age_writer_and_the_write_that_was_lacked() -> None:
    inputs = {each["cache"]: each for each in late_attempt()["inputs"]}
    quota = inputs["ZoneQuota.kedge.dev"]
    assert quota["ageSeconds"] > 4
    assert quota["newest"]["writer"] == SCHEDULER
    assert quota["lacked"]["key"] == QUOTA
    assert quota["lacked"]["writer"].startswith("agent-")
    assert inputs["NodeAllocation.kedge.dev"]["lacked"] is None


def test_a_cause_leads_back_and_its_effects_lead_forward() -> None:
    attempt = late_attempt()
    cause = attempt["cause"]
    assert cause["decision"].startswith("agent-")
    assert attempt["id"] in [each["id"] for each in read("decision", id=cause["decision"])["effects"]]


def test_rows_name_their_cause_by_its_place() -> None:
    rows = read("decisions", limit=5000)["rows"]
    linked = [each for each in rows if each["cause"] >= 0]
    assert linked
    for each in linked:
        assert rows[each["cause"]]["t"] <= each["t"]


# -- objects, differences, coupling --------------------------------------------------------------------


def test_the_answer_about_a_pod_is_that_of_kedge_why_at_the_point() -> None:
    attempt = late_attempt()
    found = read("why", key=attempt["key"], t=attempt["t"])
    assert found["answer"]["kind"] == "Explanation"
    assert "is pending: none of 3 nodes fits" in found["answer"]["sentence"]


def test_a_workload_has_its_debug_view() -> None:
    found = read("why", key="Deployment.apps/risk/risk-api", t=late_attempt()["t"])
    signals = {each["name"] for each in found["signals"]}
    assert {"ready replicas", "quota latest revision", "repair condition"} <= signals


def test_an_object_lists_its_versions_with_writers_and_decisions() -> None:
    found = read("object", key=QUOTA)
    assert [each["revision"] for each in found["versions"]] == sorted(each["revision"] for each in found["versions"])
    assert any(each["decision"].startswith(SCHEDULER) for each in found["versions"])


def test_two_points_differ_by_the_objects_between_them_in_either_order() -> None:
    attempt = late_attempt()
    early = documents().history.point(t=attempt["t"] - 40_000_000)
    there = read("difference", t=early.t, t2=attempt["t"])
    back = read("difference", t=attempt["t"], t2=early.t)
    assert there == back
    changes = {each["key"]: each["change"] for each in there["objects"]}
    assert changes[attempt["key"]] == "created"
    assert changes[QUOTA] == "changed"
    assert not any(key.startswith("Lease") for key in changes)
    assert there["backgroundObjects"] > 0


def test_a_point_does_not_differ_from_itself() -> None:
    assert read("difference", revision=300, revision2=300)["objects"] == []


def test_the_coupling_graph_has_each_cycle_once() -> None:
    found = read("coupling")
    names = set(found["components"])
    assert all(each["writer"] in names and each["reader"] in names for each in found["edges"])
    cycles = [frozenset(each["controllers"]) for each in found["cycles"]]
    assert frozenset({"deployment", "replicaset"}) in cycles
    assert len(cycles) == len(set(cycles))


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", "-1", "1e3", "9" * 30, "٣"])
def test_a_point_that_is_no_number_is_an_error(value: str) -> None:
    with pytest.raises(BadRequest, match="whole number"):
        read("place", t=value)


def test_an_unknown_document_decision_object_or_component_is_not_found() -> None:
    for name, parameters in (
        ("nothing", {}),
        ("decision", {"id": "x"}),
        ("object", {"key": "Pod/risk/none"}),
        ("why", {"key": "Pod/risk/none"}),
        ("belief", {"component": "none"}),
    ):
        with pytest.raises(NotFound):
            read(name, **parameters)
    with pytest.raises(BadRequest, match="KIND/NAMESPACE/NAME"):
        read("object", key="Pod")


def test_an_empty_recording_has_every_document() -> None:
    empty = Documents(Recording())
    assert empty.document("history", {})["commits"] == {"revision": [], "t": []}
    assert empty.document("place", {})["pods"] == []
    assert empty.document("decisions", {})["rows"] == []
    assert empty.document("difference", {})["objects"] == []
    assert empty.document("belief", {})["caches"] == []
    assert empty.document("coupling", {})["edges"] == []


# -- beliefs of processes that have ended ---------------------------------------------------------------


@functools.cache
def crashed() -> Documents:
    """The leader of the scheduler crashes with a reservation under way."""
    return Documents(run_scenario(load_scenario("duplicate-reservation")).recording)


def belief_of(found: Documents, component: str, t: int) -> dict[str, Any]:
    return found.document("belief", {"component": component, "t": str(t)})


def test_a_crashed_process_has_no_caches_to_compare() -> None:
    found = crashed()
    leader = next(each for each in found.components.names() if each["name"] == "default-scheduler-0#1")
    ended = leader["ended"]
    assert ended is not None
    before, after = (belief_of(found, leader["name"], ended + each) for each in (0, 1_000_000))
    assert before["caches"]
    assert before["ended"] is None
    assert (after["caches"], after["ended"]) == ([], ended)
    others = [each for each in found.components.names() if each["name"] != leader["name"]]
    assert [each["ended"] for each in others] == [None] * len(others)
    assert belief_of(found, "default-scheduler-1#1", ended + 5_000_000)["caches"]


NEW_LEADER = "default-scheduler-1#1"


def held_by_new_leader(found: Documents) -> dict[str, Any]:
    """The reservations of the new leader just before its first decision: its watch of them is late."""
    component = found.components.find(NEW_LEADER)
    assert component is not None
    first = next(each for each in found.history.decisions if each.process in component.deciders)
    document = belief_of(found, NEW_LEADER, found.history.t_of(first.began) - 1_000_000)
    return next(each for each in document["caches"] if each["cache"] == "Reservation.kedge.dev")


def test_the_belief_of_a_new_leader_is_known_before_its_first_decision() -> None:
    cache = held_by_new_leader(crashed())
    rows = cache["objects"]
    assert [(each["difference"], each["certain"], each["heldRevision"]) for each in rows] == [
        ("missing", True, None)
    ] * 2
    assert cache["known"]["decision"] == ""
    assert cache["nextKnown"] is not None
    assert cache["lateSeconds"] > 10


def with_clocks(found: Documents, ahead: timedelta | None) -> Documents:
    """The same records of processes whose clocks are ahead; without times for None."""

    def moved(entry: ReceivedEntry) -> ReceivedEntry:
        return entry._replace(at=None if ahead is None or entry.at is None else entry.at + ahead)

    recording = found.history.recording
    received = [each._replace(entries=tuple(map(moved, each.entries))) for each in recording.received]
    return Documents(replace(recording, received=received))


@pytest.mark.parametrize("ahead_s", [-400.0, 400.0])
def test_a_wrong_clock_of_a_process_does_not_change_its_belief(ahead_s: float) -> None:
    cache = held_by_new_leader(with_clocks(crashed(), timedelta(seconds=ahead_s)))
    assert cache["objects"] == held_by_new_leader(crashed())["objects"]


def test_without_times_nothing_is_known_before_the_first_decision() -> None:
    cache = held_by_new_leader(with_clocks(crashed(), None))
    assert (cache["known"], cache["objects"]) == (None, [])


def test_a_log_of_many_short_parts_is_one_log() -> None:
    component = CachedComponent("one#1")
    component.add_part(ReceivedPart("one#1", ("run",), "Pod", 0, 0, (), ()))
    for place in range(5_000):
        pod = made("Pod", f"web-{place}", place + 1)
        change = ReceivedChange("added", pod.key, pod, place + 1)
        entry = ReceivedEntry(place + 1, "event", place + 1, (change,))
        component.add_part(ReceivedPart("one#1", ("run",), "Pod", place, 0, (), (entry,), continues=True))
    for place in (0, 1, 4_999, 5_000):
        held = component.content("Pod", place)
        assert held is not None
        assert len(held) == place
    assert component.content("Pod", 5_001) is None


def test_a_log_that_ends_with_a_decision_claims_nothing_about_later_entries() -> None:
    """As the log of a process does: it has the entries that its decisions read, and no later ones."""
    recording, attempt = documents().history.recording, late_attempt()
    last = next(each for each in recording.decisions if each.id == attempt["id"])
    places = {each.cache: each.place for each in last.marks}
    received = [
        each._replace(entries=tuple(entry for entry in each.entries if entry.place <= places.get(each.cache, 0)))
        for each in recording.received
        if last.process in each.deciders
    ]
    decisions = [each for each in recording.decisions if each.began <= last.began]
    log = replace(recording, received=received, decisions=decisions)
    later = {"component": SCHEDULER, "t": str(attempt["t"] + 4_000_000)}
    certain = {
        whole: [
            row["certain"]
            for each in Documents(log, whole_logs=whole).document("belief", later)["caches"]
            for row in each["objects"]
            if row["key"] == QUOTA
        ]
        for whole in (True, False)
    }
    assert certain == {True: [True], False: [False]}
