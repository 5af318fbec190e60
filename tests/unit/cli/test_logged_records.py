"""Decision logs below a state folder: those of agents too, and a log whose process was killed is named."""

from __future__ import annotations

from pathlib import Path

from tests.kit.records import decision, make_env

from kedge.cli.live import logged_records
from kedge.observe import DecisionLog


def test_the_logs_of_agents_below_nodes_are_read(tmp_path: Path) -> None:
    folders = ("decisions", "decisions/server", "nodes/node-1/decisions", "nodes/node-2/decisions")
    for number, name in enumerate(folders):
        log = DecisionLog(tmp_path / name, make_env())
        log.append(decision(f"d-{number}"))
        log.close()
    found = logged_records(tmp_path)
    assert sorted(each.id for each in found.decisions) == ["d-0", "d-1", "d-2", "d-3"]
    assert found.undecoded == []


def test_a_killed_process_leaves_a_sentence_about_decisions_without_a_record(tmp_path: Path) -> None:
    killed = DecisionLog(tmp_path / "decisions", make_env())
    killed.append(decision("d-1"))
    killed.flush()  # and no close
    later = DecisionLog(tmp_path / "decisions", make_env())
    later.append(decision("d-2"))
    later.close()
    found = logged_records(tmp_path)
    assert [each.id for each in found.decisions] == ["d-1", "d-2"]
    (text,) = found.undecoded
    assert "its process was killed: decisions that had not ended then have no record" in text
