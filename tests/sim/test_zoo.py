"""Some entries of the zoo and some clean seeds. `make zoo` runs all of them."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.cli.zoo import clean_by_default
from kedge.errors import InvariantBroken
from kedge.server.service import quotas
from kedge.sim.judges import endings, invariants, process_starts
from kedge.sim.kernel import find_target, read_artefact
from kedge.sim.kernel.violations import Violation
from kedge.sim.zoo import (
    UnknownZooEntry,
    all_entries,
    entry_named,
    hunt_entry,
    hunt_zoo,
)
from kedge.sim.zoo.entry import without
from kedge.sim.zoo.hunt import clean_batches, hunt_clean, strategies_of
from kedge.sim.zoo.worlds import STANDARD, WORLDS, changes, queues, repair, runtime
from kedge.sim.zoo.worlds import invariants as zoo_invariants


def test_every_entry_has_a_source_a_world_strategies_and_a_safeguard_that_can_be_taken_out() -> None:
    entries = all_entries()
    assert len(entries) >= 40
    for entry in entries:
        assert entry.source
        assert entry.safeguard
        assert strategies_of(entry)
        assert find_target(WORLDS[entry.world].reference).program is not None
        with entry.patch():
            pass


def test_the_replacement_of_a_safeguard_has_the_same_signature() -> None:
    """A replacement with another signature would fail at every call, and be found for that reason."""
    for entry in all_entries():
        for place in entry.places:
            real, unsafe = place.__dict__[entry.attribute], entry.unsafe
            assert inspect.iscoroutinefunction(real) == inspect.iscoroutinefunction(unsafe), entry.name
            positional: list[None] = []
            named: dict[str, None] = {}
            for name, parameter in inspect.signature(real).parameters.items():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    named[name] = None
                elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    positional.append(None)
            inspect.signature(unsafe).bind(*positional, **named)


def test_a_safeguard_is_restored_after_the_hunt() -> None:
    """A hunt must not leave its bug for the next one."""
    before = quotas.overruns  # type: ignore[attr-defined]
    entry = entry_named("quota-not-enforced")
    with entry.patch():
        assert quotas.overruns is not before  # type: ignore[attr-defined]
    with suppress(ZeroDivisionError), entry.patch():
        raise ZeroDivisionError
    assert quotas.overruns is before  # type: ignore[attr-defined]


def test_an_entry_whose_safeguard_was_renamed_is_an_error() -> None:
    with pytest.raises(InvariantBroken, match="no_such_safeguard"):

        @without(quotas, "no_such_safeguard", source="-", breaks="-", world="quotas")
        def renamed() -> None:
            """Nothing."""


def test_only_a_named_invariant_is_a_find() -> None:
    entry = entry_named("now-in-status")
    assert entry.is_found_by(Violation("then silence", "written after everything was done"))
    assert not entry.is_found_by(Violation("then silence", "a task failed"))
    assert not entry.is_found_by(Violation("replicas converge", "written after everything was done"))


SLICE = (
    ("quotas", 21),
    ("groups", 16),
    ("outage", 8),
    ("serving", 14),
    ("apart", 16),
    ("gangs", 8),
    ("restarts", 16),
    ("agents", 11),
    ("garbage", 10),
    ("placement", 10),
    ("workloads", 7),
    ("rollouts", 4),
    ("nodes", 2),
    ("canary", 3),
    ("autoscaled", 2),
    ("orphans", 22),
    ("evictions", 10),
    ("unanswered", 16),
    ("replaced", 8),
    ("rivals", 10),
    ("tenants", 10),
    ("maintenance", 3),
    ("priorities", 4),
    ("edits", 4),
    ("policies", 4),
    ("clocks", 3),
    ("disks", 30),
)


@pytest.mark.parametrize(
    "name",
    [
        "quota-not-enforced",
        "quota-not-proved",
        "quota-never-refunded",
        "no-write-floors",
        "now-in-status",
        "deletions-missed",
        "wake-dropped-while-running",
        "unfenced",
        "retry-storm",
        "serving-before-ready",
        "finalizers-ignored",
        "pod-not-proved",
        "gang-committed-in-part",
        "assumptions-not-kept",
        "orphans-not-adopted",
        "node-never-checked",
        "recreate-overlaps",
        "claim-not-checked",
        "stopping-pods-not-counted",
        "stale-samples-count",
        "patch-any-version",
        "claims-of-lost-machines-kept",
        "evictions-forgotten",
        "evictions-always-refused",
        "lost-reply-taken-for-failure",
        "unknown-outcome-not-read",
        "operation-id-ignored",
        "list-revision-too-new",
        "replaced-pod-left-behind",
        "fights-not-slowed",
        "first-come-first-served",
    ],
)
def test_the_cheap_entries_are_found_within_a_few_seeds(name: str) -> None:
    row = hunt_entry(name, seeds=40, shrink_runs=3)
    assert row.found
    assert row.invariant in entry_named(name).breaks
    assert row.faults >= 0


@pytest.mark.parametrize(("world", "seeds"), SLICE)
def test_the_unmodified_control_plane_breaks_nothing_in_some_clean_seeds(world: str, seeds: int) -> None:
    assert hunt_clean(world, 0, seeds).findings == ()


@pytest.mark.soak
@pytest.mark.parametrize("world", [world for world in WORLDS if world != STANDARD])
def test_the_unmodified_control_plane_breaks_nothing_in_any_world_of_the_zoo(world: str) -> None:
    assert hunt_clean(world, 1_000, 100).findings == ()


@pytest.mark.soak
def test_the_standard_simulation_holds() -> None:
    assert hunt_clean(STANDARD, 0, 6).findings == ()


def test_a_seed_of_a_targeted_strategy_is_deterministic() -> None:
    for world in ("quotas", "groups"):
        for seed, strategy in enumerate(WORLDS[world].strategies):
            target = strategy.applied(find_target(WORLDS[world].reference))
            assert target.run(seed).hash == target.run(seed).hash


def test_clean_seeds_are_distributed_over_all_worlds_and_none_is_run_twice() -> None:
    batches = list(clean_batches(500))
    assert sum(size for _, _, size in batches) == 500
    assert batches[0][0] == STANDARD  # so that its cost is measured, however few seeds are run
    assert {target for target, _, _ in batches} == set(WORLDS)
    seen = [(target, seed) for target, start, size in batches for seed in range(start, start + size)]
    assert len(set(seen)) == len(seen)


def test_a_report_has_found_and_missed_entries_in_the_given_order() -> None:
    names = ["assumption-ends-by-timer", "quota-not-enforced"]
    found = hunt_zoo(names, seeds=1, clean=1, executor="inline", shrink_runs=0)
    report = found.as_json()
    assert [row["name"] for row in report["rows"]] == names
    assert [row["found"] for row in report["rows"]] == [False, True]
    assert (report["entries"], report["found"], report["median_seeds"]) == (2, 1, 1.0)
    assert (report["clean_seeds"], report["clean_findings"]) == (1, 0)
    assert report["seed_cpu_ms"] > 0
    assert not found.passed


def test_the_command_hunts_the_given_entries_and_its_exit_code_is_the_result() -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(main, ["zoo", *arguments, "--executor", "inline", "--shrink-runs", "0"])
        return done.exit_code, done.stdout, done.stderr

    code, out, err = run("quota-not-enforced", "--seeds", "5", "-o", "json")
    assert (code, json.loads(out)["found"]) == (0, 1)
    assert "quota-not-enforced: found after 1 seeds" in err
    code, out, err = run("assumption-ends-by-timer", "--seeds", "1")
    assert code == 1
    assert "0 of 1 entries found" in out
    assert "NOT found in 1 seeds" in err


def test_a_hunt_of_the_whole_zoo_includes_clean_seeds_and_a_hunt_of_some_entries_does_not() -> None:
    assert clean_by_default(()) >= 10 * len(WORLDS)
    assert clean_by_default(("unfenced",)) == 0


def test_the_command_lists_entries_and_refuses_unknown_ones() -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["zoo", *arguments])
        return done.exit_code, done.output

    assert len(run("--list")[1].splitlines()) == len(all_entries())
    assert len(json.loads(run("--list", "-o", "json")[1])) == len(all_entries())
    for wrong, advice in (("no-such", "--list"), ("--clean-only", "--clean N")):
        code, output = run(wrong)
        assert code == 2
        assert advice in output
    with pytest.raises(UnknownZooEntry):
        entry_named("no-such")


def test_entries_name_existing_invariants() -> None:
    """An entry that names an unknown invariant could never be found."""
    known = {each.name for each in invariants.SAFETY} | {"then silence", "no unhandled error"}
    known |= {invariants.OUTAGES, invariants.COSTS, invariants.FRESHNESS, queues.TURNS, repair.NOTED, repair.GRANTED}
    rules = (*process_starts.PROCESSES, *endings.ENDINGS, *endings.ENDINGS_OF.values())
    known |= {str(getattr(rule, "__name__", "")).replace("_", " ") for rule in rules}
    known |= {
        name.replace("_", " ")
        for names in (vars(zoo_invariants), vars(repair), vars(runtime.GroupSizes))
        for name in names
    }
    judges = [each for part in (zoo_invariants, changes, repair, queues) for each in vars(part).values()]
    known |= {vars(each).get("__name__", "") for each in judges if inspect.isclass(each)}
    for entry in all_entries():
        assert set(entry.breaks) <= known, entry.name


def test_a_find_is_kept_and_replayed_with_its_story(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["zoo", "quota-not-proved", "--keep", str(tmp_path), "--executor", "inline", "--shrink-runs", "5"]
    )
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.iterdir()
    assert f"kept: {file}" in done.output
    entry = entry_named("quota-not-proved")
    again = CliRunner().invoke(main, ["replay", str(file)])
    assert again.exit_code == 0, again.output
    first, without, *story, _, verdict = again.output.splitlines()
    assert first.startswith("zoo entry quota-not-proved, seed ")
    assert without == f"without: {entry.safeguard}"
    assert any("violation" in line and entry.breaks[0] in line for line in story)
    assert any(re.match(r"\d\d:\d\d\.\d{3} +\d+  user +committed  Pod p-\S+ created$", line) for line in story)
    assert verdict.startswith(f"same: {entry.breaks[0]}")
    events = CliRunner().invoke(main, ["replay", str(file), "--events"])
    assert "\nevents\n" in events.output
    # Without the patch the invariant would hold, and the replay would differ.
    assert find_target(WORLDS[entry.world].reference).run(read_artefact(file).tape, lenient=True).violation is None


def test_a_kept_find_has_the_initial_objects_policies_and_decisions_of_its_cluster(tmp_path: Path) -> None:
    row = hunt_entry("old-replicas-removed-first", seeds=400, shrink_runs=0, keep=str(tmp_path))
    assert row.found
    done = CliRunner().invoke(main, ["replay", row.file, "--extract", str(tmp_path / "parts")])
    assert done.exit_code == 0, done.output
    parts = {path.name: json.loads(path.read_text()) for path in (tmp_path / "parts").glob("*.json")}
    assert "Namespace" in {each["kind"] for each in parts["initial.json"]["items"]}
    assert "Pod" not in {each["kind"] for each in parts["initial.json"]["items"]}
    assert "ReplicaSet" in {each["kind"] for each in parts["objects.json"]["items"]}
    assert parts["policies.json"][0]["limits"]["node_lost_s"] > 0
    assert parts["policies.json"][0]["policies"] == []
    assert "replicaset" in {each["controller"] for each in parts["decisions.json"]}
    told = (tmp_path / "parts" / "timeline.txt").read_text()
    assert re.search(
        r" \d+  deployment +committed  Deployment web Bound=True .*; read Deployment@\d+, ReplicaSet@\d+$", told, re.M
    )
