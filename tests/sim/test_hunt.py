"""Hunt, shrink, artefacts and replay: the planted bugs are found, shrunk, and replayed in a fresh process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.kept import HEADER, BadKeptFile, Section, encode_end, encode_section, read_kept
from kedge.sim.kernel import (
    NO_FAULTS,
    Fifo,
    FixedRates,
    Hunt,
    ReplayVerdict,
    Simulation,
    SimulationTarget,
    UnknownTarget,
    find_target,
    hunt,
    make_artefact,
    read_artefact,
    replay,
    shrink,
    simulate,
    write_artefact,
)
from kedge.sim.kernel.artefacts import fingerprint
from kedge.sim.kernel.failure_report import describe_failure
from kedge.sim.kernel.hunt import UnknownExecutor
from kedge.sim.kernel.targets import reference_to

HERE = Path(__file__).parent
KIT = HERE.parent / "kit"
PLANTED = KIT / "planted_bugs.py"
ROOT = HERE.parent.parent


def planted(name: str) -> str:
    return f"{PLANTED}:{name}"


@pytest.mark.parametrize("name", ["lost_update", "duplicate_create", "deadlock"])
def test_a_planted_bug_is_found_shrunk_and_replayed_identically_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    found = hunt(find_target(planted(name)), range(1_000), jobs=2, directory=tmp_path)
    assert found.done == 1_000
    assert len(found.groups) == 1
    (group,) = found.groups.values()
    assert group.shrunk is not None
    assert group.path is not None
    assert len(group.shrunk.outcome.tape.strikes()) <= 3
    assert not group.shrunk.exhausted
    assert all(condition.needed for condition in group.shrunk.conditions)
    fresh = subprocess.run(
        [sys.executable, "-c", "from kedge.cli import main; main()", "replay", str(group.path)],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert f"trace {group.shrunk.outcome.hash}" in fresh.stdout.splitlines()[-1]
    assert fresh.stdout.splitlines()[-1].startswith("same: ")


def test_a_sound_program_has_no_violation_and_reaches_its_marks() -> None:
    found = hunt(find_target(planted("sound")), range(200), executor="inline")
    assert not found.groups
    assert found.marks_missed() == []


def test_a_program_that_uses_all_of_the_kernel_holds_and_reaches_its_marks() -> None:
    found = hunt(find_target(f"{KIT}/kernel_program.py:everything"), range(100), executor="inline")
    assert not [str(group.violation) for group in found.groups.values()]
    assert not found.broken
    assert found.marks_missed() == []


def test_a_mark_that_no_seed_reaches_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "quiet.py"
    file.write_text(
        "from kedge.sim.kernel import simulate\n"
        "@simulate(marks=('rare', 'common'))\n"
        "async def program(sim):\n"
        "    sim.sometimes('common')\n"
        "    sim.sometimes('rare', sim.seed > 100)\n"
    )
    found = hunt(find_target(f"{file}:program"), range(3), executor="inline")
    assert found.marks == {"common": 3}
    assert found.marks_missed() == ["rare"]


@pytest.mark.parametrize("executor", ["inline", "thread", "process", "concurrent.futures:ThreadPoolExecutor"])
def test_every_executor_finds_the_same(executor: str) -> None:
    found = hunt(find_target(planted("duplicate_create")), range(60), executor=executor, jobs=2)
    (group,) = found.groups.values()
    assert sorted(group.seeds) == _expected()


def _expected() -> list[int]:
    target = find_target(planted("duplicate_create")).calibrated()
    return [seed for seed in range(60) if target.run(seed).violation is not None]


def test_an_unknown_executor_is_refused_by_name() -> None:
    with pytest.raises(UnknownExecutor, match="there is no executor 'nowhere:nothing'"):
        hunt(find_target(planted("sound")), range(1), executor="nowhere:nothing")


def test_a_worker_that_dies_loses_only_its_seed_and_the_seed_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    file.write_text(
        "import os\nasync def program(sim):\n    sim.sometimes('alive')\n    if sim.seed == 13:\n        os._exit(9)\n"
    )
    found = hunt(find_target(f"{file}:program"), range(40), jobs=2)
    assert found.lost == [13]
    assert found.done == 40
    assert found.marks == {"alive": 39}


def test_an_interrupt_keeps_the_failures_found(tmp_path: Path) -> None:
    def interrupt(found: Hunt) -> None:
        if found.failures and not found.interrupted:
            raise KeyboardInterrupt

    found = hunt(
        find_target(planted("duplicate_create")),
        range(1_000),
        executor="inline",
        directory=tmp_path,
        on_progress=interrupt,
    )
    assert found.interrupted
    assert found.done < 1_000
    assert len(list(tmp_path.glob("*.kedge"))) == 1


# -- shrinking -------------------------------------------------------------------------------------


@simulate(faults=FixedRates({"lose": 0.3, "delay": 0.3}))
async def needs_two_faults(sim: Simulation) -> None:
    """Fails only if faults strike the second and the fourth of many events, and there are at least three objects."""
    struck = [bool(sim.faults.at("write", f"w{index}", ("lose", "delay"))) for index in range(12)]
    objects = sim.choose_int("objects", 1, 30)
    if struck[1] and struck[3] and objects >= 3:
        sim.violate("nothing is lost", "lost", cause="two faults")


def test_shrinking_leaves_only_the_needed_faults_and_objects() -> None:
    target = find_target(f"{__file__}:needs_two_faults")
    failure = next(o for seed in range(200) if (o := target.run(seed)).violation is not None and len(o.faults) > 4)
    shrunk = shrink(target, failure)
    labels = [shrunk.outcome.tape.streams["faults"][place][0] for place in shrunk.outcome.tape.strikes()]
    assert labels == ["write w1", "write w3"]
    assert [value for _, _, value in shrunk.outcome.tape.streams["workload"]] == [2]
    assert [condition.needed for condition in shrunk.conditions] == [True, True]
    assert target.run(shrunk.outcome.tape).hash == shrunk.outcome.hash


@simulate(faults=NO_FAULTS)
async def needs_one_preemption(sim: Simulation) -> None:
    """Fails only if host b runs between the first two steps of host a."""
    state = {"a": 0, "b": 0}

    async def work_a() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        state["a"] = 1
        await asyncio.sleep(0)
        state["a"] = 2

    async def work_b() -> None:
        for _ in range(26):
            await asyncio.sleep(0)
        state["b"] = 1
        if state["a"] == 1:
            sim.violate("b never sees half of a", "it did")

    one = sim.host("a").spawn(work_a(), name="a")
    other = sim.host("b").spawn(work_b(), name="b")
    await asyncio.gather(one, other)


def test_shrinking_leaves_few_schedule_deviations() -> None:
    target = find_target(f"{__file__}:needs_one_preemption")
    assert replace(target, policy=Fifo()).run(0).violation is None
    failure = next(o for seed in range(300) if (o := target.run(seed)).violation is not None)
    assert failure.tape.deviations() > 10
    shrunk = shrink(target, failure)
    assert 1 <= shrunk.outcome.tape.deviations() <= 7
    assert target.run(shrunk.outcome.tape).hash == shrunk.outcome.hash
    assert shrunk.conditions[-1].needed


def test_a_budget_ends_shrinking_and_is_reported() -> None:
    target = find_target(f"{__file__}:needs_two_faults")
    failure = next(o for seed in range(200) if (o := target.run(seed)).violation is not None and len(o.faults) > 4)
    shrunk = shrink(target, failure, runs_max=2)
    assert shrunk.exhausted
    assert shrunk.runs == 2


@simulate(faults=FixedRates({"lose": 1.0}))
async def needs_every_fault(sim: Simulation) -> None:
    struck = [sim.faults.at("write", f"w{index}", ("lose",)) for index in range(9)]
    if all(struck):
        sim.violate("something is kept", "all was lost")


@pytest.mark.parametrize(
    ("shrink_runs", "condition_runs", "tried"), [(600, 60, 9), (600, 4, 4), (2, 60, 2), (0, 60, 0)]
)
def test_a_budget_ends_the_search_for_needed_faults_and_the_rest_is_reported_as_not_tried(
    shrink_runs: int, condition_runs: int, tried: int
) -> None:
    """A failure that could not be shrunk may have hundreds of faults, and each would cost a run."""
    target = find_target(f"{__file__}:needs_every_fault")
    shrunk = shrink(target, target.run(1), runs_max=shrink_runs, condition_runs_max=condition_runs)
    assert [each.needed for each in shrunk.conditions] == [True] * tried + [None] * (9 - tried)
    artefact = make_artefact(target, shrunk.outcome, shrunk.conditions)
    assert describe_failure(artefact).count("not tried") == 9 - tried


# -- targets with arguments ------------------------------------------------------------------------

LUCK = {"left": 1}


def lucky(name: str, without: str = "") -> SimulationTarget:
    """A factory: with `without`, each run has no luck."""

    async def program(sim: Simulation) -> None:
        await asyncio.sleep(1)
        sum(range(400_000))  # longer than a thread's turn: others begin meanwhile
        if not LUCK["left"]:
            sim.violate("luck is left", name)

    @contextmanager
    def unlucky() -> Iterator[None]:
        before, LUCK["left"] = LUCK["left"], 0
        try:
            yield
        finally:
            LUCK["left"] = before

    return SimulationTarget(program=program, faults=NO_FAULTS, around=unlucky if without else nullcontext)


def test_a_reference_may_have_arguments_for_the_function_that_makes_the_target() -> None:
    plain = find_target(reference_to(f"{__file__}:lucky", {"name": "a b&c"}))
    assert plain.run(0).violation is None
    weak = find_target(reference_to(f"{__file__}:lucky", {"name": "a b&c", "without": "luck"}))
    violation = weak.run(0).violation
    assert violation is not None
    assert violation.message == "a b&c"
    assert find_target(weak.reference).run(0).violation == violation
    with pytest.raises(UnknownTarget, match="only a function takes arguments"):
        find_target(f"{__file__}:LUCK?name=a")


def test_a_change_around_a_run_is_made_for_that_run_alone() -> None:
    """Threads take turns: a change that is undone in the middle of another thread's run would hide its failure."""
    target = find_target(reference_to(f"{__file__}:lucky", {"name": "x", "without": "luck"}))
    found = hunt(target, range(40), executor="thread", jobs=4)
    assert found.failures == 40
    assert LUCK["left"] == 1


def test_other_sources_of_a_target_are_part_of_its_build(tmp_path: Path) -> None:
    file = tmp_path / "part.txt"
    file.write_text("one")
    target = replace(lucky("x"), sources=(file,))
    before = fingerprint(target)
    file.write_text("two")
    assert fingerprint(target) != before


# -- files and replay ------------------------------------------------------------------------------


@pytest.fixture
def artefact_file(tmp_path: Path) -> Path:
    target = find_target(planted("duplicate_create")).calibrated()
    failure = next(o for seed in range(200) if (o := target.run(seed)).violation is not None)
    return write_artefact(make_artefact(target, failure), tmp_path)


def test_a_file_holds_everything_and_reads_back_equal(artefact_file: Path) -> None:
    sections = {each.name: each for each in read_kept(artefact_file) if isinstance(each, Section)}
    assert set(sections) >= {"run", "tape", "trace"}
    summary = json.loads(sections["run"].body)
    for part in ("target", "violation", "faults", "versions", "flags", "hash", "build", "conditions", "marks"):
        assert part in summary
    artefact = read_artefact(artefact_file)
    again = replay(artefact)
    assert again.verdict is ReplayVerdict.SAME
    assert again.outcome.tape == artefact.tape
    assert again.outcome.trace.events == artefact.trace.events


def test_attachments_of_a_program_are_in_the_file(tmp_path: Path) -> None:
    async def program(sim: Simulation) -> None:
        sim.attach("objects", [{"kind": "Pod", "name": "p"}])
        sim.violate("never", "it did")

    target = SimulationTarget(program=program)
    path = write_artefact(make_artefact(target, target.run(1)), tmp_path)
    assert read_artefact(path).attachments == {"objects": [{"kind": "Pod", "name": "p"}]}


def test_sections_that_a_program_adds_are_in_the_file_and_cost_a_plain_run_nothing(tmp_path: Path) -> None:
    collected = []

    async def program(sim: Simulation) -> None:
        def collect() -> list[Section]:
            collected.append(sim.seed)
            return [Section("extra", 2, b"body")]

        sim.add_sections(collect)
        sim.violate("never", "it did")

    target = SimulationTarget(program=program)
    outcome = target.run(1)
    assert collected == []
    path = write_artefact(make_artefact(target, outcome), tmp_path)
    assert collected == [1]
    assert [each[:3] for each in read_artefact(path).sections] == [("extra", 2, b"body")]


def test_damaged_truncated_and_foreign_files_have_different_errors(artefact_file: Path) -> None:
    whole = artefact_file.read_bytes()
    tape = next(each for each in read_kept(artefact_file) if isinstance(each, Section) and each.name == "tape")
    middle = tape.at + 40
    cases: dict[str, bytes] = {
        "is damaged or cut short: sections 'trace' are missing; .* the file ends within": whole[:-200],
        "sections 'tape' are missing; .* the body of a section 'tape' is damaged": whole[:middle]
        + bytes([whole[middle] ^ 1])
        + whole[middle + 1 :],
        "is not a file that kedge kept": b'{"kind": "Pod"}',
        "in the format of an earlier kedge": b'{\n "format": "kedge simulation failure",\n "formatVersion": 1,',
        "use a matching kedge": whole.replace(b"kedge kept 1", b"kedge kept 9", 1),
        "has no run to replay": b"".join((HEADER, encode_section("other", b""), encode_end(1))),
    }
    for message, data in cases.items():
        artefact_file.write_bytes(data)
        with pytest.raises(BadKeptFile, match=message):
            read_artefact(artefact_file)
    with pytest.raises(BadKeptFile, match="No such file"):
        read_artefact(artefact_file.parent / "nothing.kedge")


def test_damage_outside_the_run_is_stated_and_the_run_is_replayed(artefact_file: Path) -> None:
    sections = [each for each in read_kept(artefact_file) if isinstance(each, Section)]
    parts = [encode_section(each.name, each.body, version=each.version) for each in sections]
    broken = bytearray(encode_section("decision", b"x" * 100))
    broken[-1] ^= 1
    artefact_file.write_bytes(b"".join((HEADER, *parts, broken)))
    artefact = read_artefact(artefact_file)
    assert [gap.why for gap in artefact.gaps] == [
        "the body of a section 'decision' is damaged",
        "the file has no end: its writer was killed, or is still writing",
    ]
    assert "gap        " in describe_failure(artefact)
    assert replay(artefact).verdict is ReplayVerdict.SAME


def test_a_diverged_replay_reports_the_first_difference(artefact_file: Path) -> None:
    artefact = read_artefact(artefact_file)

    async def other(sim: Simulation) -> None:
        await find_target(planted("duplicate_create")).program(_Renamed(sim))

    class _Renamed:
        def __init__(self, sim: Simulation) -> None:
            self._sim = sim

        def __getattr__(self, name: str) -> object:
            return getattr(self._sim, name)

        def choose_int(self, label: str, low: int, high: int) -> int:
            return self._sim.choose_int(label + " wanted", low, high)

    target = replace(find_target(planted("duplicate_create")), program=other)
    again = replay(artefact, target=target, regression=False)
    assert again.verdict is ReplayVerdict.DIVERGED
    assert (
        "out of step at workload choice 0: the tape has 'objects' of 8, the run draws 'objects wanted'" in again.summary
    )


def test_on_another_build_a_replay_is_a_regression_test_that_reports_its_drift(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    text = PLANTED.read_text()
    file.write_text(text)
    target = find_target(f"{file}:duplicate_create").calibrated()
    failure = next(o for seed in range(200) if (o := target.run(seed)).violation is not None)
    path = write_artefact(make_artefact(target, failure), tmp_path)

    def replayed() -> tuple[int, str]:
        ended = subprocess.run(
            [sys.executable, "-c", "from kedge.cli import main; main()", "replay", "-q", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    file.write_text(
        text.replace(
            "async def ensure(name: str) -> None:",
            "async def ensure(name: str) -> None:\n        sim.note('new', 'code')",
        )
    )
    code, output = replayed()
    assert code == 1
    assert output.startswith("still fails: no name is taken twice")
    assert "drifted after" in output
    file.write_text(
        text.replace(
            "        self.names.append(name)\n",
            "        if name in self.names:\n            return\n        self.names.append(name)\n",
        )
    )
    code, output = replayed()
    assert code == 0
    assert output.startswith("holds: every invariant is kept")
    assert "faults struck" in output


# -- the command -----------------------------------------------------------------------------------


def test_kedge_hunt_prints_the_bug_and_its_replay_command(tmp_path: Path) -> None:
    arguments = ["hunt", planted("duplicate_create"), "--seeds", "60", "--executor", "inline", "-d", str(tmp_path)]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 1, ended.output
    (file,) = tmp_path.glob("*.kedge")
    assert f"replay with: kedge replay {file}" in ended.output
    assert "does the failure need it?" in ended.output
    assert "60 of 60 seeds" in ended.output
    assert CliRunner().invoke(main, ["replay", str(file)]).exit_code == 0


@pytest.mark.parametrize("policy", ["mixed", "uniform", "fifo", "pct"])
def test_kedge_hunt_takes_every_policy(policy: str, tmp_path: Path) -> None:
    arguments = ["hunt", planted("sound"), "-n", "30", "--executor", "inline", "--policy", policy, "-d", str(tmp_path)]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 0, ended.output


def test_kedge_hunt_and_replay_explain_wrong_arguments(tmp_path: Path) -> None:
    for arguments, message in (
        (["hunt", "nonsense"], "give package.module:function or file.py:function"),
        (["hunt", f"{PLANTED}:missing"], "has nothing called missing"),
        (["hunt", "no.such.module:x"], "cannot load"),
        (["replay", str(tmp_path / "none.json")], "does not exist"),
    ):
        ended = CliRunner().invoke(main, arguments)
        assert ended.exit_code == 2
        assert message in ended.output
