"""Mutants of the control plane: operators, draws, overlays, and what becomes of one that is tried."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.cli import main
from kedge.sim.kernel.artefacts import pack_tape
from kedge.sim.zoo import entry_named
from kedge.sim.zoo.find import world_target
from kedge.sim.zoo.mutants import (
    LAYERS,
    Mutant,
    MutantReport,
    MutantResult,
    TrialOptions,
    draw_mutants,
    mutant_table,
    run_campaign,
    trials,
    try_mutant,
)
from kedge.sim.zoo.mutants.campaign import REACHED
from kedge.sim.zoo.mutants.line_marks import MARKS, marked
from kedge.sim.zoo.mutants.operators import OPERATORS, edits_of, is_mutation
from kedge.sim.zoo.mutants.report import WITHOUT_TESTS
from kedge.sim.zoo.mutants.sources import (
    PACKAGE,
    UnknownLayer,
    checkout,
    layer_named,
    modules_of,
    overlay,
    source_hash,
)
from kedge.sim.zoo.mutants.sources import (
    test_files as files_of,
)
from kedge.sim.zoo.mutants.trials import HANGS, failing_test, run_worlds
from kedge.sim.zoo.mutants.worlds_run import fails, hunt_by_coverage, hunt_worlds
from kedge.sim.zoo.worlds import WORLDS

QUOTAS = "server/service/quotas.py"
EXAMPLES = {
    "guard negated": ("if late:\n        return 1", "if not (late):\n        return 1"),
    "guard removed": ("if late:\n        raise ValueError", "if False:\n        raise ValueError"),
    "condition removed": ("x = [y for y in z if y.uid == uid]", "x = [y for y in z if True]"),
    "check dropped": ("check(uid, 'no uid')", "pass"),
    "raise dropped": ("raise ValueError", "pass"),
    "argument dropped": ("delete(key, uid=pod.uid, force=True)", "delete(key, force=True)"),
    "off by one": ("x = now >= (until)", "x = now > (until)"),
    "wait skipped": ("await ready()", "pass"),
    "read skipped": ("uid = await read(uid)", "pass"),
    "early return": ("write(uid)", "return\n    write(uid)"),
}


def function(body: str) -> str:
    return f"async def example(uid, late, now, until) -> None:\n    {body}\n"


def test_every_operator_has_an_example() -> None:
    assert set(EXAMPLES) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_changes_one_place(operator: str) -> None:
    before, after = map(function, EXAMPLES[operator])
    assert after in [each.applied(before) for each in edits_of(before) if each.operator == operator]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("get(uid=x)", "get()"),
        ("get(\n        uid=x,\n    )", "get(\n        )"),
        ("get((a), uid=x)", "get((a))"),
        ("get((a), uid=x, **more)", "get((a), **more)"),
        ("get(é='ü', uid=(x or y))", "get(é='ü')"),
    ],
)
def test_an_argument_is_dropped_with_its_comma(call: str, left: str) -> None:
    source = function(f"z = {call}")
    found = [each.applied(source) for each in edits_of(source) if each.operator == "argument dropped"]
    assert found == [function(f"z = {left}")]


def test_a_default_is_no_condition() -> None:
    source = function("x = uid or late")
    assert not [each for each in edits_of(source) if each.operator == "condition removed"]


EVERY = [path for layer in LAYERS for path in modules_of(layer)]


@settings(max_examples=15)
@given(st.sampled_from(EVERY), st.data())
def test_every_edit_of_a_real_module_compiles_and_differs(path: Path, data: st.DataObject) -> None:
    source = (PACKAGE / path).read_text()
    edits = edits_of(source)
    for edit in data.draw(st.lists(st.sampled_from(edits), max_size=4)) if edits else ():
        after = edit.applied(source)
        compile(after, str(path), "exec")
        assert is_mutation(source, after)


def reached_everywhere(layer: str) -> dict[str, dict[int, list[str]]]:
    found: dict[str, dict[int, list[str]]] = {}
    for path in modules_of(layer):
        lines = (PACKAGE / path).read_text().count("\n") + 1
        found[str(path)] = {line: ["quotas"] for line in range(1, lines + 1)}
    return found


def test_equal_seeds_draw_equal_mutants_and_a_larger_draw_begins_with_the_smaller() -> None:
    reached = reached_everywhere("client")
    few, many, other = (draw_mutants(n, seed, reached) for n, seed in ((4, 1), (8, 1), (4, 2)))
    assert [each.name for each in many[:4]] == [each.name for each in few]
    assert [each.name for each in other] != [each.name for each in few]
    assert len({each.name for each in many}) == 8


def test_only_lines_that_a_world_executes_are_drawn() -> None:
    reached = {QUOTAS: {line: ["quotas"] for line in range(1, 60)}}
    drawn = draw_mutants(1000, 1, reached)
    assert drawn
    assert all(each.path == QUOTAS and each.edit.line < 60 for each in drawn)
    assert draw_mutants(5, 1, reached, ["runtime"]) == []


def test_a_marked_module_does_the_same_and_has_the_lines_that_ran() -> None:
    source = dedent(
        '''
        """A module."""
        from __future__ import annotations
        total = 0

        def count(n: int) -> int:
            """Count."""
            global total
            for each in range(n):
                if each > 1:
                    total += each
                elif each == 7:
                    total -= 1
            match n:
                case 4:
                    return total
            return -1
        '''
    ).lstrip()
    names: dict[str, object] = {}
    exec(compile(marked(source), "marked", "exec"), names)
    assert names["count"](4) == 5  # type: ignore[operator]
    assert names[MARKS] == {8, 9, 10, 11, 13, 15}
    assert names["count"].__doc__ == "Count."


def test_an_overlay_replaces_one_module_and_leaves_the_checkout_alone() -> None:
    before = source_hash()
    path = Path(QUOTAS)
    with overlay({path: "changed = True\n"}) as root:
        assert (root / "kedge" / path).read_text() == "changed = True\n"
        assert (root / "kedge" / "limits.py").samefile(PACKAGE / "limits.py")
        assert not (root / "kedge" / path.parent / "__pycache__").exists()
    assert not root.exists()
    assert source_hash() == before


def test_tests_that_name_the_module_come_first() -> None:
    tree = checkout()
    assert tree is not None
    found = files_of("service", "kedge.server.service.quotas", tree)
    assert "quota" in found[0]
    assert all((tree / each).is_file() for each in found)
    for layer in LAYERS:
        for pattern in layer_named(layer).tests:
            assert list(tree.glob(pattern)), f"{layer}: {pattern} matches no test any more"


def test_a_layer_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UnknownLayer, match="give one of service"):
        layer_named("nowhere")


# -- trials ----------------------------------------------------------------------------------------


def mutant_of(path: str, line: str, operator: str, layer: str = "service", world: str = "quotas") -> Mutant:
    """The first mutant of a line, given by a part of its text."""
    source = (PACKAGE / path).read_text()
    number = next(n for n, text in enumerate(source.splitlines(), 1) if line in text)
    edit = next(each for each in edits_of(source) if each.line == number and each.operator == operator)
    return Mutant(layer, path, edit, source, (world,))


def test_a_quota_that_refuses_nothing_is_killed_by_the_hunt() -> None:
    mutant = mutant_of(QUOTAS, "if broken", "guard removed")
    assert "-    if broken:\n+    if False:" in mutant.diff
    found = try_mutant(mutant, TrialOptions(cpu_s=20, tests_cpu_s=0))
    assert found.killed_by_hunt
    assert (found.world, found.killed_by_tests) == ("quotas", None)
    assert "quota" in found.invariant


def test_a_quota_that_refuses_nothing_is_killed_by_a_hunt_by_coverage() -> None:
    mutant = mutant_of(QUOTAS, "if broken", "guard removed")
    found = try_mutant(mutant, TrialOptions(cpu_s=20, tests_cpu_s=0, coverage=True))
    assert found.killed_by_hunt
    assert found.world == "quotas"
    assert found.strategy in {each.name for each in WORLDS["quotas"].strategies}
    assert 0 < found.cpu_s < 20


def test_a_tape_that_fails_without_the_mutant_too_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutant_of(QUOTAS, "if broken", "guard removed")
    answers = {
        "hunt by coverage": {"world": "quotas", "strategy": "swarm", "tape": "AA"},
        "replay": {"world": "quotas"},
    }
    asked: list[tuple[str, object]] = []

    def answer(what: str, given: object, **_: object) -> dict[str, str]:
        asked.append((what, given))
        return dict(answers[what])

    monkeypatch.setattr(trials, "run_worlds", answer)
    assert not try_mutant(mutant, TrialOptions(tests_cpu_s=0, coverage=True)).killed_by_hunt
    assert asked[1] == ("replay", {"world": "quotas", "strategy": "swarm", "tape": "AA"})


def test_a_tape_of_another_build_is_run_again_with_its_strategy() -> None:
    target = world_target("quotas", "swarm")
    tape = b64encode(pack_tape(target.run(3).tape)).decode()
    assert fails("quotas", "swarm", tape) == {}
    with entry_named("quota-not-enforced").patch():
        broken = next(o for seed in range(50) if (o := target.run(seed)).violation is not None)
        assert fails("quotas", "swarm", b64encode(pack_tape(broken.tape)).decode()) == {"world": "quotas"}


def test_a_hunt_by_coverage_without_a_find_ends_with_its_cpu_time() -> None:
    found = hunt_by_coverage(["tenants", "rivals"], cpu_s=0.01)
    assert "world" not in found
    assert found["seeds"] == 1


def test_a_test_that_fails_without_the_mutant_too_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(): assert False\n")
    (tmp_path / "test_b.py").write_text(
        "from kedge.limits import __file__ as f\ndef test_it(): assert 'overlay' not in f\n"
    )
    with overlay({Path("limits.py"): (PACKAGE / "limits.py").read_text()}) as root:
        assert failing_test(root, tmp_path, ["test_a.py", "test_b.py"]) == "test_b.py::test_it"


def test_a_mutant_that_loops_for_ever_is_one_that_hangs() -> None:
    with overlay({Path(QUOTAS): "while True:\n    pass\n"}) as root:
        assert run_worlds("hunt", {"worlds": ["quotas"], "cpu_s": 1}, root=root, cpu_s_max=4) == HANGS


def test_a_hunt_without_a_find_ends_with_its_cpu_time() -> None:
    found = hunt_worlds(["tenants", "rivals"], cpu_s=0.01)
    assert "world" not in found
    assert found["seeds"] >= 1


def test_the_lines_that_a_world_executes_are_measured() -> None:
    """Only lines of marked modules, and only those that ran."""
    path = Path(QUOTAS)
    with overlay({path: marked((PACKAGE / path).read_text())}) as root:
        found = run_worlds("reach", {"worlds": ["quotas"], "seeds": 1}, root=root)
    assert isinstance(found, dict)
    lines = found["quotas"][QUOTAS]
    source = (PACKAGE / path).read_text().splitlines()
    assert any("if broken" in source[line - 1] for line in lines)
    assert not any("it was removed while it was counted" in source[line - 1] for line in lines)


# -- campaigns -------------------------------------------------------------------------------------


def kept_state(folder: Path) -> Path:
    """A state folder in which the reached lines are known, so that they need not be measured."""
    (folder / source_hash()).mkdir(parents=True)
    (folder / source_hash() / REACHED).write_text(json.dumps(reached_everywhere("client")))
    return folder


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    state, tried = kept_state(tmp_path), list[str]()

    def campaign(count: int) -> MutantReport:
        return run_campaign(
            count,
            seed=3,
            state=state,
            options=TrialOptions(cpu_s=0, tests_cpu_s=0),
            executor="inline",
            on_progress=lambda row: tried.append(row.name),
        )

    first = campaign(2)
    assert sorted(tried) == sorted(row.name for row in first.rows)
    second = campaign(3)
    assert len(tried) == 3
    assert second.rows[:2] == first.rows
    assert len(second.survivors) == 3


def row(name: str, *, tests: bool | None = None, hunt: bool = False) -> MutantResult:
    return MutantResult(
        name, "client", "x.py", 1, "off by one", f"-{name}", (), killed_by_tests=tests, killed_by_hunt=hunt
    )


def test_the_report_counts_by_killer_and_shows_the_diff_of_survivors() -> None:
    rows = [
        row("a", tests=True),
        row("b", tests=False, hunt=True),
        row("c", tests=True, hunt=True),
        row("d", tests=False),
    ]
    report = MutantReport(1, 9, tested=True, rows=rows)
    text = mutant_table(report)
    assert "1 killed by tests, 1 by the hunt, 1 by both, 1 by neither" in text
    assert "-d" in text
    assert "\n-a" not in text
    found = report.as_json()
    assert [found[each] for each in ("mutants", "killed_by_tests", "killed_by_hunt", "survived")] == [4, 2, 2, 1]
    assert found["rows"][3]["survived"]


def test_a_report_shows_that_no_tests_were_run() -> None:
    report = MutantReport(1, 9, tested=False, rows=[row("a", hunt=True)])
    assert WITHOUT_TESTS in mutant_table(report)
    assert report.as_json()["killed_by_tests"] is None


def test_the_command_prints_json_and_exits_by_survivors(tmp_path: Path) -> None:
    command = ["zoo", "--mutants", "1", "--seed", "3", "--cpu-s", "0", "--tests-cpu-s", "0", "-o", "json"]
    command += ["--state", str(kept_state(tmp_path)), "--executor", "inline", "--layer", "client"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 1, ran.output
    assert json.loads(ran.stdout)["survived"] == 1
    for wrong in (["--layer", "nowhere"], ["no-such-mutant"]):
        assert CliRunner().invoke(main, [*command, *wrong]).exit_code == 2
