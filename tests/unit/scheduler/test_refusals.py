"""Refusals are remembered until they are understood, and no longer."""

from __future__ import annotations

from tests.objects import Clock, make_env

from kedge.errors import Refused
from kedge.keys import Key
from kedge.limits import Limits
from kedge.placement.reasons import Reason
from kedge.scheduler.binding.refusals import ABOUT_THE_POD, Refusals

NODE = Key("Node", "", "node-a")
LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")


class RefusalsHarness:
    """Refusals, and caches that are as far as the test says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reached = 0
        self.versions: dict[Key, int] = {NODE: 7}
        limits = Limits(scheduler_refusals_max=3, scheduler_quarantine_s=60.0)
        self.refusals = Refusals(
            make_env(clock=self.clock, limits=limits),
            lambda _, revision: self.reached >= revision,
            lambda key: self.versions.get(key, 0),
        )

    def refuse(self, reason: Reason = Reason.RESOURCE, about: Key = LEDGER, revision: int = 10) -> bool:
        error = Refused("no", refusal=reason.value, key=about, revision=revision)
        return self.refusals.record("pod", "node-a", error)

    def excluded(self) -> tuple[str, ...]:
        return self.refusals.excluded("pod")


def test_a_node_is_left_out_until_the_refusing_version_has_been_seen() -> None:
    harness = RefusalsHarness()
    harness.refuse()
    assert harness.excluded() == ("node-a",)
    assert harness.refusals.unseen("pod") == [(LEDGER, 10)]
    harness.reached = 10
    assert harness.excluded() == ()
    assert harness.refusals.unseen("pod") == []


def test_a_node_that_is_gone_is_left_out_until_the_cache_has_another_version_or_none() -> None:
    """Nothing that is gone has a revision to wait for."""
    for after in ({}, {NODE: 8}):
        harness = RefusalsHarness()
        harness.refuse(Reason.NODE_GONE, NODE, 0)
        assert harness.excluded() == ("node-a",)
        harness.reached = 1_000
        assert harness.excluded() == ("node-a",)
        harness.versions = after
        assert harness.excluded() == ()


def test_one_refused_too_often_is_quarantined_for_a_while_though_all_was_seen() -> None:
    harness = RefusalsHarness()
    harness.reached = 1_000
    assert [harness.refuse() for _ in range(3)] == [False, False, True]
    assert harness.excluded() == ("node-a",)
    assert harness.refusals.quarantined() == 1
    until_s = harness.refusals.quarantined_until_s("pod")
    assert until_s == harness.clock.monotonic() + 60
    harness.clock.advance(61)
    assert harness.excluded() == ()
    assert harness.refusals.quarantined_until_s("pod") is None
    assert harness.refuse() is False, "it is counted anew"


def test_what_no_other_node_would_change_excludes_none() -> None:
    harness = RefusalsHarness()
    for reason in sorted(ABOUT_THE_POD):
        harness.refuse(reason)
    assert harness.excluded() == ()
    assert len(harness.refusals) == 0


def test_pods_are_remembered_apart_and_forgotten_when_they_go() -> None:
    harness = RefusalsHarness()
    harness.refuse()
    assert harness.refusals.excluded("namesake") == ()
    harness.refusals.forget("pod")
    assert harness.excluded() == ()
    assert len(harness.refusals) == 0
