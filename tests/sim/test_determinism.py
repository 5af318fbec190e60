"""`check_determinism`: equal runs pass, and nondeterminism is found and located."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.errors import KedgeError
from kedge.sim.kernel import NotDeterministic, check_determinism

KIT = Path(__file__).parents[1] / "kit"


def test_sets_of_tasks_and_futures_have_one_order_in_every_process() -> None:
    check_determinism(f"{KIT}/leaky_programs.py:sets_of_tasks", seeds=20)


@pytest.mark.parametrize("name", ["lost_update", "duplicate_create", "deadlock", "sound"])
def test_the_planted_programs_run_the_same_in_two_processes(name: str) -> None:
    check_determinism(f"{KIT}/planted_bugs.py:{name}", seeds=100)


def test_a_program_that_uses_all_of_the_kernel_runs_the_same_in_two_processes() -> None:
    assert check_determinism(f"{KIT}/kernel_program.py:everything", seeds=100).violations == 0


@pytest.mark.slow
def test_a_thousand_seeds_of_all_of_the_kernel_run_the_same_in_two_processes() -> None:
    assert check_determinism(f"{KIT}/kernel_program.py:everything", seeds=1_000).violations == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lost_update", "duplicate_create", "deadlock", "sound"])
def test_a_thousand_seeds_of_each_planted_program_run_the_same_in_two_processes(name: str) -> None:
    assert check_determinism(f"{KIT}/planted_bugs.py:{name}", seeds=1_000).seeds == 1_000


def test_an_order_taken_from_a_set_is_found_at_the_first_event_that_differs() -> None:
    with pytest.raises(NotDeterministic) as caught:
        check_determinism(f"{KIT}/leaky_programs.py:hash_order", seeds=3)
    assert caught.value.difference is not None
    assert "visit pod-" in caught.value.difference.one
    assert "visit pod-" in caught.value.difference.other


def test_an_order_that_changes_no_event_is_found_at_its_step_with_the_names_of_the_tasks() -> None:
    with pytest.raises(NotDeterministic) as caught:
        check_determinism(f"{KIT}/leaky_programs.py:hash_order_of_tasks", seeds=3)
    assert caught.value.difference is not None
    assert "a step of a: pod-" in caught.value.difference.one
    assert "a step of a: pod-" in caught.value.difference.other


def test_system_randomness_is_found() -> None:
    with pytest.raises(NotDeterministic, match="the clock jumps to"):
        check_determinism(f"{KIT}/leaky_programs.py:entropy", seeds=3)


def test_a_target_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(KedgeError, match="has nothing called missing"):
        check_determinism(f"{KIT}/leaky_programs.py:missing", seeds=1)
