"""The commit invariants find a planted violation in a recorded history, and nothing in a sound one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.objects import asynchronous, config_map, make_world

from kedge.api.objects import Object
from kedge.observe.records import CommitRecord, StoreState
from kedge.sim.judges.recorded import judge_history

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = StoreState(1, BEGAN, ())


def commit(revision: int, *written: Object, deleted: tuple[Object, ...] = ()) -> CommitRecord:
    return CommitRecord(revision, BEGAN + timedelta(seconds=revision), written, tuple(each.key for each in deleted))


@asynchronous
async def test_a_removal_that_ignores_finalizers_is_found_and_a_marked_one_is_not() -> None:
    world = await make_world()
    body = config_map("guarded")
    body["metadata"]["finalizers"] = ["example.com/keep"]
    guarded, plain = await world.create(body), await world.create(config_map("plain"))
    sound = [commit(2, guarded, plain), commit(3, deleted=(plain,))]
    assert judge_history(EMPTY, sound) == []
    (found,) = judge_history(EMPTY, [*sound, commit(4, deleted=(guarded,))])
    assert (found.invariant, found.revision) == ("finalizers are respected", 4)
    assert "guarded" in str(found)


@asynchronous
async def test_a_history_that_begins_later_has_its_first_state() -> None:
    world = await make_world()
    body = config_map("guarded")
    body["metadata"]["finalizers"] = ["example.com/keep"]
    guarded = await world.create(body)
    assert judge_history(StoreState(2, BEGAN, (guarded,)), [commit(3, deleted=(guarded,))])
