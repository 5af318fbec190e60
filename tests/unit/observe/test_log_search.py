"""Searches by the index of the decision log give what a scan gives, whatever happened to the index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from tests.kit.decision_histories import RandomHistory
from tests.kit.records import BEGAN, WEB, Time, decision, make_env, pod, read

from kedge.cli.live import owner_uids, related_keys, with_logged
from kedge.cli.timeline import timeline_of
from kedge.cli.why import answer_about
from kedge.errors import NotFound
from kedge.kept import Section, read_kept
from kedge.keys import Key
from kedge.observe import Decision, DecisionLog, Recorder, read_decisions
from kedge.observe.readers.coverage import totals_of
from kedge.observe.readers.logged_part import DECISIONS_MAX, answer_part, history_part
from kedge.observe.readers.object_timeline import FAULTS, EntryMark
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import ClusterEvidence, writes_of
from kedge.observe.recording.log_index import (
    BUCKETS,
    FEW_BUCKETS,
    INDEX,
    TABLE,
    TABLES_BEFORE_BUCKETS,
    decode_head,
)
from kedge.observe.recording.log_search import LogSearch
from kedge.observe.recording.process_events import ELECTION, END, START, ended, started
from kedge.observe.recording.segments import read_log, segments
from kedge.observe.records import AdmittedWrite, OutsideEvent, encode_decision

NOW = datetime(2030, 1, 2, tzinfo=UTC)


def scanned(*folders: Path) -> Recording:
    found = Recording()
    for folder in folders:
        for record in read_log(folder, report=lambda each: found.undecoded.append(str(each))):
            found.add(record)
    found.decisions.sort(key=lambda each: each.began)
    return found


def names(key: Key) -> str:
    return f"{key.kind}/{key.name}"


def assert_equal_to_a_scan(history: RandomHistory, *folders: Path) -> None:
    everything = scanned(*folders)
    search = LogSearch(folders)
    full = ClusterEvidence(
        history.objects, everything.decisions, NOW, writes_of(everything.decisions), (), everything.coverages
    )
    for key in sorted(history.known):
        found = timeline_of(names(key), "default", history_part(search, [key]))
        expected = timeline_of(names(key), "default", everything)
        assert (found is None) == (expected is None), key
        if found is not None and expected is not None:
            assert found.entries == expected.entries
            assert list(map(encode_decision, found.decisions)) == list(map(encode_decision, expected.decisions))
            assert [each for each in found.coverage if not each.startswith("missing")] == [
                each for each in expected.coverage if not each.startswith("missing")
            ]
        if key not in history.objects:
            continue
        objects = ClusterEvidence(history.objects, [], NOW)
        related = related_keys([key], objects)
        part = answer_part(search, [key], related, owners=owner_uids(related, objects))
        answer = answer_about(names(key), "default", with_logged(objects, part, search))
        assert answer == answer_about(names(key), "default", full)
    for each in everything.decisions:
        again = search.decision(each.id)
        assert again is not None
        assert encode_decision(again) == encode_decision(each)
        for call in each.calls:
            if call.outcome == "done" and call.revision:
                assert call.reply
                writer = search.writer_of(call.reply[0].key, call.revision)
                assert writer is not None
                assert writer.id == each.id


def write(history: RandomHistory, folder: Path, count: int, *, part_max: int, segment_bytes: int) -> None:
    env = make_env(decision_index_part_max=part_max, decision_log_segment_bytes_max=segment_bytes)
    log = DecisionLog(folder, env)
    log.keep_inputs(history.pieces)
    log.count_by(history.counts)
    draw = Random(count)
    for each in history.decisions(count):
        log.append(each)
        if draw.random() < 0.1:
            log.note(OutsideEvent(each.began, draw.choice((START, END, ELECTION)), "p starts", "p"))
        if history.random.random() < 0.1:
            log.flush()
    if history.random.random() < 0.5:
        log.close()
    else:
        log.flush()  # its process is killed, or still runs


@pytest.mark.parametrize("seed", range(24))
def test_an_answer_by_the_index_is_the_answer_of_a_scan(tmp_path: Path, seed: int) -> None:
    history, draw = RandomHistory(seed), Random(seed)
    part_max, segment_bytes = draw.randrange(1, 40), draw.choice((3_000, 20_000, 1 << 24))
    write(history, tmp_path, 60, part_max=part_max, segment_bytes=segment_bytes)
    assert_equal_to_a_scan(history, tmp_path)


def test_processes_with_logs_of_their_own_are_one_history(tmp_path: Path) -> None:
    history = RandomHistory(7)
    folders = [tmp_path / "controllers-1", tmp_path / "scheduler-1"]
    for folder in (*folders, *folders):
        write(history, folder, 40, part_max=9, segment_bytes=8_000)
    assert_equal_to_a_scan(history, *folders)


def index_sections(path: Path) -> list[Section]:
    return [each for each in read_kept(path) if isinstance(each, Section) and each.name in (INDEX, TABLE)]


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_index_is_replaced_by_a_scan(tmp_path: Path, seed: int) -> None:
    history = RandomHistory(seed)
    write(history, tmp_path, 80, part_max=10, segment_bytes=12_000)
    draw = Random(seed)
    for path in segments(tmp_path).values():
        if parts := index_sections(path):
            chosen = draw.choice(parts)
            damage(path, draw.randrange(chosen.at, chosen.end))
    assert_equal_to_a_scan(history, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_was_cut_off_anywhere_is_searched_as_it_is_scanned(tmp_path: Path, seed: int) -> None:
    history = RandomHistory(seed)
    write(history, tmp_path, 60, part_max=10, segment_bytes=1 << 24)
    (path,) = segments(tmp_path).values()
    data = path.read_bytes()
    path.write_bytes(data[: Random(seed).randrange(len(data))])
    assert_equal_to_a_scan(history, tmp_path)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_timeline_has_the_starts_ends_and_terms_of_processes_since_the_object_exists(
    tmp_path: Path, *, is_closed: bool
) -> None:
    time = Time()
    env = make_env(time)
    log = DecisionLog(tmp_path, env)
    log.note(started(env, "controllers"))  # long before the object
    for n, event in enumerate((None, ended, started, None)):
        time.seconds = 100.0 * (n + 1)
        if event is not None:
            log.note(event(env, "controllers"))
        else:
            log.append(decision(f"d-{n}", [read(pod("web-0", n + 1))], key=pod("web-0", 1).key, began=env.now()))
    text = "p: the term of this leader begins"
    log.note(OutsideEvent(env.now(), ELECTION, text, "Lease.coordination.k8s.io/kube-system/every", {"holder": "p"}))
    log.close() if is_closed else log.flush()
    part = history_part(LogSearch([tmp_path]), [pod("web-0", 1).key])
    found = timeline_of("pod/web-0", "default", part)
    assert found is not None
    faults = [(each.at, each.text, each.mark) for each in found.entries if each.lane == FAULTS]
    assert faults == [
        (BEGAN + timedelta(seconds=200), "controllers ends", EntryMark.FAULT),
        (BEGAN + timedelta(seconds=300), "controllers starts", EntryMark.FAULT),
        (BEGAN + timedelta(seconds=400), text, EntryMark.FAULT),
    ]
    since = timeline_of("pod/web-0", "default", part, since=BEGAN + timedelta(seconds=250))
    assert since is not None
    assert [each.text for each in since.entries if each.lane == FAULTS] == ["controllers starts", text]


def test_a_log_of_many_decisions_is_not_scanned(tmp_path: Path) -> None:
    """Only the decisions about the object are found, also among those behind the last part."""
    log = DecisionLog(tmp_path, make_env(decision_index_part_max=50))
    for n in range(1_010):
        log.append(decision(f"d-{n}", [read(pod(f"web-{n}", n + 1))], key=Key("Pod", "default", f"web-{n}")))
    log.flush()
    found = LogSearch([tmp_path]).about([Key("Pod", "default", "web-3")])
    assert "d-3" in {each.id for each in found.decisions.values()}
    assert len(found.decisions) <= 1 + 2, "the object, and hardly a checksum of another name"
    behind = LogSearch([tmp_path]).about([Key("Pod", "default", "web-1009")])
    assert "d-1009" in {each.id for each in behind.decisions.values()}
    assert len(behind.decisions) <= 1 + 2, "the last decisions have no index yet, and are selected all the same"


def test_a_segment_with_many_postings_has_more_buckets_and_is_searched_alike(tmp_path: Path) -> None:
    """A part has few postings, and the segment many: a search reads a small part of those."""
    pods = [pod(f"web-{n}", n + 1) for n in range(100)]
    log = DecisionLog(tmp_path, make_env(decision_index_part_max=200, decision_log_segment_bytes_max=1 << 26))
    for n in range(450):
        log.append(decision(f"d-{n}", [read(*pods)], key=Key("Pod", "default", f"about-{n}")))
    log.close()
    (path,) = segments(tmp_path).values()
    heads = [decode_head(each.body) for each in index_sections(path) if each.name == INDEX]
    assert [len(each.tables) - TABLES_BEFORE_BUCKETS for each in heads] == [FEW_BUCKETS, FEW_BUCKETS, BUCKETS]
    search = LogSearch([tmp_path])
    for n in range(450):
        assert [each.id for each in search.about([Key("Pod", "default", f"about-{n}")]).decisions.values()] == [
            f"d-{n}"
        ]
    touching = search.touching([Key("Pod", "default", "web-7")]).decisions.values()
    assert [each.id for each in touching] == [f"d-{n}" for n in range(450)]


def test_an_answer_about_a_busy_workload_reads_the_newest_decisions_and_states_how_many_it_left(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env(decision_index_part_max=500))
    for n in range(DECISIONS_MAX + 1_000):
        log.append(decision(f"d-{n}", key=WEB))
    log.close()
    part = answer_part(LogSearch([tmp_path]), [WEB], [])
    assert [each.id for each in part.decisions] == [f"d-{n}" for n in range(1_000, DECISIONS_MAX + 1_000)]
    (left,) = part.undecoded
    assert left.startswith(f"only the newest {DECISIONS_MAX} decisions about it were read, and 1000 older ones")
    assert part.totals is not None
    assert sum(part.totals.rules.values()) == DECISIONS_MAX + 1_000


def test_the_totals_and_the_coverage_are_those_of_the_whole_log(tmp_path: Path) -> None:
    env = make_env(decision_index_part_max=20, decisions_sample_every=3)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    for n in range(200):
        recorder.take(decision(f"d-{n}", result="failed" if n % 7 == 0 else "await change"))
    log.close()
    search, everything = LogSearch([tmp_path]), scanned(tmp_path)
    totals = search.totals()
    assert sum(totals.rules.values()) == len(everything.decisions)
    assert totals.rules["failure"] == 29
    assert search.coverages == everything.coverages


def test_cache_contents_and_counts_in_a_segment_are_left_to_readers_of_the_whole_log(tmp_path: Path) -> None:
    history = RandomHistory(3)
    write(history, tmp_path, 60, part_max=7, segment_bytes=1 << 24)
    everything = scanned(tmp_path)
    assert everything.received
    assert everything.counts
    assert everything.outside
    assert not everything.undecoded
    found = history_part(LogSearch([tmp_path]), history.known)
    assert (found.received, found.counts) == ([], [])
    assert not [each for each in found.outside if each.text.startswith("limits")]


def test_a_report_is_found_and_not_counted(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env(decision_index_part_max=2))
    for n in range(3):
        log.append(decision(f"d-{n}", kept="sample"))
        log.append(decision(f"report-{n}", kept="other: report", part_of=f"d-{n}"))
    log.flush()
    log.append(decision("report-3", kept="other: report", part_of="d-2"))
    log.flush()
    search = LogSearch([tmp_path])
    assert search.totals() == totals_of(scanned(tmp_path).decisions)
    assert search.totals().rules == {"sample": 3}
    assert all(search.decision(f"report-{n}") is not None for n in range(4))


def test_a_refused_object_is_found_by_the_uid_of_its_owner(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    refused = AdmittedWrite("ada", (), "", 0, "uid-web")
    log.append(decision("refusal", key=Key("Pod", "default", "web-a"), error="Forbidden: no", admission=refused))
    log.append(decision("other", key=Key("Pod", "default", "web-b"), error="Forbidden: no"))
    log.close()
    part = answer_part(LogSearch([tmp_path]), [WEB], [WEB], owners=["uid-web"])
    assert ids(part.decisions) == ["refusal"]


def test_damage_to_a_decision_is_reported_where_a_search_meets_it(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    for n in range(3):
        log.append(decision(f"d-{n}", key=Key("Pod", "default", f"web-{n}")))
    log.close()
    (path,) = segments(tmp_path).values()
    records = [each for each in read_kept(path) if isinstance(each, Section) and each.name == "decision"]
    damage(path, records[1].end - 1)
    reported: list[str] = []
    search = LogSearch([tmp_path], report=lambda each: reported.append(str(each)))
    assert search.decision("d-0") is not None
    assert not reported
    assert search.decision("d-1") is None
    assert len(reported) == 1
    assert "is damaged" in reported[0]


def test_a_missing_log_is_not_an_empty_log(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="give the directory of one"):
        LogSearch([tmp_path / "none"])


def test_the_index_stays_within_the_bound_of_the_log(tmp_path: Path) -> None:
    """Records that refer to many objects have an index that is larger than they are."""
    bound = 200_000
    env = make_env(
        decision_log_bytes_max=bound, decision_log_segment_bytes_max=30_000, decision_log_record_bytes_max=10_000
    )
    log = DecisionLog(tmp_path, env)
    for n in range(400):
        log.append(decision(f"d-{n}", [read(*(pod(f"web-{each}", 1) for each in range(100)))]))
        log.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    assert log.statistics().segments_dropped > 2


def ids(found: list[Decision]) -> list[str]:
    return [each.id for each in found]


def test_a_reader_without_the_index_reads_the_same_records(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env(decision_index_part_max=2))
    for n in range(9):
        log.append(decision(f"d-{n}"))
    log.close()
    reported: list[str] = []
    assert ids(list(read_decisions(tmp_path, report=lambda each: reported.append(str(each))))) == [
        f"d-{n}" for n in range(9)
    ]
    assert not reported
