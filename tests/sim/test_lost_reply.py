"""The example `lost_reply`: a real controller, client, service and store in a simulation."""

from __future__ import annotations

from kedge.sim.examples.lost_reply import careful, careless
from kedge.sim.kernel import NO_FAULTS, RunOutcome, run

SEEDS = range(150)


def first_failure() -> RunOutcome:
    for seed in SEEDS:
        outcome = run(careless, seed)
        if outcome.violation is not None:
            return outcome
    raise AssertionError("no seed lost a reply after the commit: raise the fault rates")


def test_a_timeout_taken_for_a_failure_makes_a_duplicate_and_the_hunt_finds_it() -> None:
    found = first_failure()
    assert found.violation is not None
    assert found.violation.invariant == "never more pods than requested"
    assert found.faults, "the violation needs a fault"


def test_the_tape_of_a_failure_replays_it_exactly() -> None:
    found = first_failure()
    again = run(careless, found.tape)
    assert again.diverged is None
    assert (again.hash, again.violation) == (found.hash, found.violation)


def test_a_controller_that_uses_ensure_survives_the_same_seeds() -> None:
    for seed in SEEDS:
        outcome = run(careful, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"


def test_the_careless_controller_fails_only_under_faults() -> None:
    """The example is about a lost reply: a late cache alone must not break it."""
    for seed in range(60):
        outcome = run(careless, seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
