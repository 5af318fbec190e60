"""The search by coverage: it finds bugs that plain seeds do not, in the same order with any workers, and reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.cli.coverage_hunt import coverage_json
from kedge.sim.cluster.state_coverage import state_of
from kedge.sim.kernel import (
    FixedRates,
    ReplayVerdict,
    Simulation,
    Violation,
    find_target,
    hunt,
    read_artefact,
    replay,
    simulate,
)
from kedge.sim.kernel.coverage_search import (
    LOOKAHEAD,
    MUTATIONS,
    CoverageSearch,
    CoveredRun,
    keep_finds,
    run_planned,
    schedule_arms,
    search_coverage,
)
from kedge.sim.kernel.hunt import InlineExecutor
from kedge.sim.kernel.run_coverage import FAULT_STEPS, STATES, Feature, run_covered
from kedge.sim.zoo import Trial, entry_named
from kedge.sim.zoo.comparison import FINDS_ENOUGH, all_summaries, try_coverage, turns_summary
from kedge.sim.zoo.coverage import COVERAGE, first_find, found_in, world_arms
from kedge.sim.zoo.worlds import WORLDS

HERE = Path(__file__).parent
IN_DOUBT = "two writes in a row are in doubt"


@simulate(faults=FixedRates({"lose": 0.04}), marks=(IN_DOUBT,))
async def two_rare_things(sim: Simulation) -> None:
    """Two writes in a row are lost, in about one run of twenty; then both messages of the recovery are lost too."""
    lost = 0
    for _ in range(30):
        await asyncio.sleep(0.01)
        lost = lost + 1 if sim.faults.at("write", "client", ("lose",)) else 0
        if lost == 2:
            break
    if lost < 2:
        return
    sim.sometimes(IN_DOUBT)
    if sim.faults.at("recovery", "client", ("lose",)) and sim.faults.at("second try", "client", ("lose",)):
        sim.violate("a recovery ends", "it does not", cause="lost twice")


def rare() -> str:
    return f"{__file__}:two_rare_things"


def search(reference: str, seed: int = 0, runs: int = 600, **options: Any) -> CoverageSearch:
    options.setdefault("executor", "inline")
    return search_coverage(schedule_arms(find_target(reference)), seed=seed, runs_max=runs, **options)


@pytest.mark.parametrize("seed", [0, 1_000, 3_000])
def test_a_bug_that_needs_two_rare_things_in_a_row_is_found_by_coverage_and_not_by_plain_seeds(seed: int) -> None:
    plain = hunt(find_target(rare()), range(seed, seed + 1_000), executor="inline")
    assert plain.marks.keys() == {IN_DOUBT}
    assert not plain.groups
    found = search(rare(), seed, runs=1_000, until=lambda search: bool(search.finds))
    (find,) = found.finds.values()
    assert find.arm == f"{rare()}: {MUTATIONS}"
    assert find.run < 1_000


# -- the search ------------------------------------------------------------------------------------


def test_equal_seeds_make_equal_searches_with_any_workers() -> None:
    def runs(**workers: Any) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
        steps: list[tuple[int, ...]] = []
        found = search(rare(), 3, 200, on_run=lambda so_far: steps.append((so_far.steps, *tallies(so_far))), **workers)
        report = coverage_json(found)
        for each in (report, *report["finds"]):
            del each["cpu_s"]
        return steps, report

    def tallies(found: CoverageSearch) -> list[int]:
        return [arm.runs for arm in found.bandit.arms]

    first = runs(executor="inline")
    assert first == runs(executor="inline")
    assert first == runs(executor="process", jobs=2)
    assert first == runs(executor="thread", jobs=5)
    assert first[0][-1][-1] > 20, "tapes were mutated"
    assert first != runs(executor="inline", lookahead=LOOKAHEAD + 1)


def test_a_mutated_tape_that_fails_is_shrunk_kept_and_replays_the_same(tmp_path: Path) -> None:
    found = search(rare(), 0, 1_000, until=lambda search: bool(search.finds))
    keep_finds(found, tmp_path)
    (find,) = found.finds.values()
    assert MUTATIONS in find.arm
    assert not found.broken
    assert find.group.shrunk is not None
    assert len(find.group.shrunk.outcome.tape.strikes()) == 4
    (file,) = tmp_path.glob("*.kedge")
    assert replay(read_artefact(file)).verdict is ReplayVerdict.SAME


def test_a_bug_found_again_is_nothing_new_and_its_tape_is_not_mutated() -> None:
    found = search(f"{HERE.parent}/kit/planted_bugs.py:duplicate_create", 0, 120)
    (find,) = found.finds.values()
    assert len(find.group.seeds) > 5
    assert len(find.group.tapes) == 1
    (corpus,) = found.worlds.values()
    assert sum(arm.new for arm in found.bandit.arms) == 1 + sum(corpus.reached.values())
    for entry in corpus.entries:
        assert found.arms[entry.arm].target.run(entry.tape).violation is None


def test_features_of_a_failing_run_are_new_again_in_a_run_that_holds() -> None:
    """Otherwise no tape that leads there would be kept: that of the failing run is not."""
    found = CoverageSearch(schedule_arms(find_target(rare())), 0)
    held = run_planned(found.plan())
    feature = Feature(FAULT_STEPS, 1, (0, 0, 0, 0))
    failed = replace(held.result, violation=Violation("it holds", "it does not"))
    found.add(found.plan(), CoveredRun(failed, (feature,)))
    (corpus,) = found.worlds.values()
    assert (corpus.reached[FAULT_STEPS], corpus.entries) == (0, [])
    found.add(found.plan(), CoveredRun(held.result, (feature,)))
    assert corpus.reached[FAULT_STEPS] == 1
    assert [entry.tape for entry in corpus.entries] == [held.result.tape]


def test_the_cpu_time_of_a_search_is_bounded() -> None:
    found = search(rare(), 0, 100_000, cpu_s_max=0.1)
    assert 0.1 <= found.cpu_s < 2
    assert LOOKAHEAD < found.done < 10_000


def test_a_worker_that_dies_loses_only_its_run(tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    file.write_text(
        "import os\n"
        "async def program(sim):\n"
        "    sim.sometimes(f'seed {sim.seed}')\n"
        "    if sim.seed == 5:\n"
        "        os._exit(9)\n"
    )
    found = search(f"{file}:program", 3, 40, executor="process", jobs=2)
    assert found.done == 40
    assert {each.why for each in found.broken} == {"its worker died"}
    assert 1 <= len(found.broken) <= 3, "seed 5 of each of three schedules"
    assert sum(arm.runs for arm in found.bandit.arms) == 40


class Refusing(InlineExecutor):
    """Breaks at the first call, as a pool whose workers have died."""

    def __init__(self, left: list[int]) -> None:
        self._left = left

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._left:
            self._left.pop()
            raise BrokenExecutor
        return super().submit(fn, *args, **kwargs)


def test_runs_are_started_again_in_a_new_executor_after_one_broke() -> None:
    left = [1, 2, 3]

    def make() -> Executor:
        return Refusing(left)

    found = search(rare(), 0, 40, executor=make)
    assert not found.broken
    assert coverage_json(found)["arms"] == coverage_json(search(rare(), 0, 40))["arms"]


def test_a_program_that_cannot_be_run_is_reported_and_ends_the_search_in_order(tmp_path: Path) -> None:
    file = tmp_path / "absent.py"
    file.write_text("async def program(sim):\n    pass\n")
    arms = schedule_arms(find_target(f"{file}:program"))
    gone = [replace(arm, target=replace(arm.target, reference=f"{file}:gone")) for arm in arms]
    found = search_coverage(gone, runs_max=5, executor="inline")
    assert [each.number for each in found.broken] == [1, 2, 3, 4, 5]
    assert "has nothing called gone" in found.broken[0].why


# -- worlds of the zoo -----------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["groups", "placement", "garbage"])
def test_a_cluster_with_coverage_has_the_same_trace_and_reaches_states(world: str) -> None:
    reached: dict[str, int] = {}
    for arm in world_arms([world])[:4]:
        plain, (covered, found) = arm.target.run(1), run_covered(arm.target, 1)
        assert covered.hash == plain.hash
        assert covered.tape == plain.tape
        reached |= {sort: reached.get(sort, 0) + len(features) for sort, features in found.features.items()}
    assert reached[STATES] > 5
    assert reached[FAULT_STEPS] > 5


def test_a_search_of_all_worlds_begins_with_one_strategy_of_each() -> None:
    arms = world_arms()
    assert [arm.world for arm in arms[: len(WORLDS)]] == list(WORLDS)
    assert len(arms) == sum(len(world.strategies) for world in WORLDS.values())
    assert len({(arm.world, arm.strategy) for arm in arms}) == len(arms)


def test_the_state_of_an_object_has_no_names_counts_and_times() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "web-1", "deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 7},
        "spec": {"nodeName": "node-3", "replicas": 3},
        "status": {
            "phase": "Running",
            "replicas": 1,
            "observedGeneration": 6,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Lost", "status": "False"}],
        },
    }
    assert state_of(json.dumps(body).encode()) == "terminating bound Running not observed too few Ready"
    assert state_of(b"\x00") == "not JSON"
    assert state_of(b"[]") == "not an object"


def test_an_entry_of_the_zoo_is_found_by_coverage_and_its_find_replays(tmp_path: Path) -> None:
    entry = entry_named("quota-never-refunded")
    found = first_find(entry, seed=0, runs_max=30)
    assert found_in(entry, found)
    keep_finds(found, tmp_path, 3)
    (file, *_) = tmp_path.glob("*.kedge")
    assert replay(read_artefact(file)).verdict is ReplayVerdict.SAME


def test_a_trial_of_coverage_begins_again_after_each_find_within_its_runs() -> None:
    found = try_coverage("quota-not-enforced", range(12))
    assert (found.strategy, found.targeted) == (COVERAGE, False)
    assert 1 <= found.finds <= FINDS_ENOUGH
    assert found.seeds <= 12
    assert found.steps > 0
    again = try_coverage("quota-not-enforced", range(12))
    assert (again.seeds, again.finds, again.steps) == (found.seeds, found.finds, found.steps)


def test_strategies_in_turn_are_summarized_without_the_search_that_chooses_among_them() -> None:
    trials = [
        Trial("one", "swarm", targeted=False, seeds=10, finds=1, steps=1_000, cpu_s=1.0),
        Trial("one", COVERAGE, targeted=False, seeds=10, finds=5, steps=1_000, cpu_s=1.0),
    ]
    assert turns_summary([trials]).sooner == 1.0
    assert all_summaries([trials])[0].strategy == COVERAGE


# -- the command -----------------------------------------------------------------------------------


def command(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["hunt", *arguments, "--executor", "inline"])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_shows_findings_features_marks_and_arms(tmp_path: Path) -> None:
    code, text, _ = command(rare(), "--coverage", "--seeds", "600", "-d", str(tmp_path))
    assert code == 1
    assert text.startswith("=== bug 1: ")
    assert "broken     a recovery ends" in text
    assert f"mark       {rare()}: {IN_DOUBT}: " in text
    assert f"reached    {rare()}: " in text
    assert any(line.startswith(f"{rare()}: {MUTATIONS}") for line in text.splitlines())
    assert len(list(tmp_path.glob("*.kedge"))) == 1


def test_the_command_prints_json_with_the_marks_that_no_run_reached(tmp_path: Path) -> None:
    file = tmp_path / "quiet.py"
    file.write_text(
        "from kedge.sim.kernel import simulate\n"
        "@simulate(marks=('rare', 'common'))\n"
        "async def program(sim):\n"
        "    sim.sometimes('common')\n"
    )
    code, text, _ = command(f"{file}:program", "--coverage", "--seeds", "20", "-o", "json")
    report = json.loads(text)
    assert code == 2
    assert (report["runs"], report["finds"], report["broken"]) == (20, [], [])
    (world,) = report["worlds"]
    assert (world["marks"], world["never"]) == ({"common": 20}, ["rare"])
    assert world["features"] == {"marks": 1, "states": 0, "faults": 0}
    assert [sorted(arm) for arm in report["arms"]] == [["arm", "finds", "new", "runs", "steps"]] * 4
    assert sum(arm["runs"] for arm in report["arms"]) == 20


def test_the_command_searches_a_world_of_the_zoo() -> None:
    code, text, _ = command("zoo:quotas", "--coverage", "--seeds", "3", "-o", "json")
    report = json.loads(text)
    assert code == 0
    assert [world["world"] for world in report["worlds"]] == ["quotas"]
    assert "quotas: crash after write" in {arm["arm"] for arm in report["arms"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zoo:nowhere", "--coverage"), "the zoo has no world 'nowhere'"),
        (("counter.py:x", "--coverage", "--lineage"), "are different searches: give one"),
        (("counter.py:x", "--coverage", "--policy", "pct"), "leave --policy out"),
        (("kedge.sim.examples.lost_reply:careful", "--cpu-s", "3"), "are for --coverage"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: Sequence[str], message: str) -> None:
    code, _, error = command(*arguments)
    assert code == 2
    assert message in " ".join(error.replace("│", " ").split())
