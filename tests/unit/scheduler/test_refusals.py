"""Refusals are remembered until the cache shows their cause, and no longer."""

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
    """Refusals, and caches at the revisions that the test sets."""

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


def test_a_node_is_excluded_until_the_cache_shows_the_refusing_version() -> None:
    harness = RefusalsHarness()
    harness.refuse()
    assert harness.excluded() == ("node-a",)
    assert harness.refusals.unseen("pod") == [(LEDGER, 10)]
    harness.reached = 10
    assert harness.excluded() == ()
    assert harness.refusals.unseen("pod") == []


def test_a_deleted_node_is_excluded_until_the_cache_has_another_version_or_none() -> None:
    """A deleted object has no revision to wait for."""
    for after in ({}, {NODE: 8}):
        harness = RefusalsHarness()
        harness.refuse(Reason.NODE_GONE, NODE, 0)
        assert harness.excluded() == ("node-a",)
        harness.reached = 1_000
        assert harness.excluded() == ("node-a",)
        harness.versions = after
        assert harness.excluded() == ()


def test_a_pair_refused_too_often_is_quarantined_though_the_cache_is_current() -> None:
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
    assert harness.refuse() is False, "the count starts again"


def test_a_refusal_that_concerns_the_pod_excludes_no_node() -> None:
    harness = RefusalsHarness()
    for reason in sorted(ABOUT_THE_POD):
        harness.refuse(reason)
    assert harness.excluded() == ()
    assert len(harness.refusals) == 0


def test_refusals_are_kept_by_pod_and_forgotten_with_it() -> None:
    harness = RefusalsHarness()
    harness.refuse()
    assert harness.refusals.excluded("namesake") == ()
    harness.refusals.forget("pod")
    assert harness.excluded() == ()
    assert len(harness.refusals) == 0
