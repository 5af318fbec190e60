"""The plan of a Deployment: sizes step by step, within surge and unavailable, whatever the ReplicaSets do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.kit.pod_views import a_set

from kedge.api.views.workloads import DeploymentSpec, DeploymentStrategy, RollingUpdate
from kedge.controllers.deployment.plan import RollingBounds, ScalePlan, SetFacts, plan_scales, resolve_bounds


def spec(replicas: int, surge: int | str, unavailable: int | str) -> DeploymentSpec:
    rolling = RollingUpdate(max_surge=surge, max_unavailable=unavailable)
    return DeploymentSpec(replicas=replicas, strategy=DeploymentStrategy(rolling_update=rolling))


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "bounds"),
    [
        (10, "25%", "25%", RollingBounds(3, 2)),
        (3, "25%", "25%", RollingBounds(1, 0)),
        (1, "0%", "25%", RollingBounds(0, 1)),
        (10, 0, "9%", RollingBounds(0, 1)),
        (4, 2, 1, RollingBounds(2, 1)),
        (2, 0, 5, RollingBounds(0, 2)),
        (0, "25%", "25%", RollingBounds(0, 0)),
    ],
)
def test_percentages_of_surge_are_rounded_up_and_of_unavailable_down(
    replicas: int, surge: int | str, unavailable: int | str, bounds: RollingBounds
) -> None:
    assert resolve_bounds(spec(replicas, surge, unavailable)) == bounds


def test_recreate_may_have_none_available() -> None:
    assert resolve_bounds(DeploymentSpec(replicas=3, strategy=DeploymentStrategy(type="Recreate"))) == RollingBounds(
        0, 3
    )


# -- rolling update --------------------------------------------------------------------------------


def test_the_first_replica_set_gets_all_replicas_at_once() -> None:
    assert plan_scales(3, RollingBounds(1, 0), new=None, old=[]) == ScalePlan({}, first_size=3)


def test_a_new_replica_set_begins_with_the_surge() -> None:
    assert plan_scales(4, RollingBounds(1, 1), new=None, old=[a_set("old", 4)]).first_size == 1


def test_old_replicas_are_removed_when_new_ones_are_available() -> None:
    plan = plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1), old=[a_set("old", 4)])
    assert plan.sizes == {"old": 3}


def test_a_new_replica_that_is_not_available_frees_no_old_one() -> None:
    plan = plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1, available=0), old=[a_set("old", 4)])
    assert plan.sizes == {}


def test_unavailable_old_replicas_are_removed_first() -> None:
    old = [a_set("older", 2, created="1"), a_set("old", 3, available=0, created="2")]
    plan = plan_scales(5, RollingBounds(1, 1), new=a_set("new", 1, available=0), old=old)
    assert plan.sizes == {"old": 2}


def test_draining_copies_use_up_the_surge() -> None:
    draining = a_set("old", 3, copies=4)
    assert plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1), old=[draining]).sizes == {}
    assert plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1), old=[a_set("old", 3)]).sizes == {"new": 2}


def test_nothing_scales_up_while_a_replica_set_has_not_observed_its_size() -> None:
    unaware = a_set("old", 3, copies=0, observed=False)
    plan = plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1, available=0), old=[unaware])
    assert plan.sizes == {}
    assert plan.waits_for == "old to see its size"
    assert plan_scales(4, RollingBounds(1, 0), new=None, old=[unaware]).first_size == 0


def test_a_complete_rollout_plans_nothing() -> None:
    assert plan_scales(4, RollingBounds(1, 0), new=a_set("new", 4), old=[a_set("old", 0)]) == ScalePlan({})


def test_a_held_replica_set_keeps_its_size() -> None:
    plan = plan_scales(4, RollingBounds(1, 0), new=a_set("new", 1), old=[a_set("old", 4, held=True)])
    assert plan.sizes == {}


def test_a_rollback_keeps_the_healthy_replicas_until_others_are() -> None:
    """The template is reverted in mid-rollout: the old ReplicaSet is current again, and serving replicas stay until
    others are available."""
    plan = plan_scales(4, RollingBounds(1, 1), new=a_set("first", 1), old=[a_set("second", 2)])
    assert plan.sizes == {"first": 3}
    plan = plan_scales(4, RollingBounds(1, 1), new=a_set("first", 3, available=1), old=[a_set("second", 2)])
    assert plan.sizes == {}


ALL_MAY_GO = RollingBounds(0, 3)


@pytest.mark.parametrize("recreate", [True, False])
def test_a_rollback_keeps_the_last_available_replica_although_its_bounds_allow_none(recreate: bool) -> None:
    back, serving = a_set("first", 0), a_set("second", 3)
    plan = plan_scales(3, ALL_MAY_GO, new=back, old=[serving], recreate=recreate, floor=True)
    assert (plan.sizes, plan.floor) == ({"second": 1}, "second")
    plan = plan_scales(3, ALL_MAY_GO, new=back, old=[a_set("second", 1)], recreate=recreate, floor=True)
    assert plan.sizes == {"first": 2}
    waiting = a_set("first", 2, available=0)
    plan = plan_scales(3, ALL_MAY_GO, new=waiting, old=[a_set("second", 1)], recreate=recreate, floor=True)
    assert (plan.sizes, plan.waits_for) == ({}, "an available replica of the new template")
    plan = plan_scales(3, ALL_MAY_GO, new=a_set("first", 2, available=1), old=[a_set("second", 1)], floor=True)
    assert plan.floor == ""


def test_the_floor_of_a_single_replica_needs_one_more_copy() -> None:
    plan = plan_scales(1, RollingBounds(0, 1), new=a_set("first", 0), old=[a_set("second", 1)], floor=True)
    assert plan.sizes == {"first": 1}
    plan = plan_scales(1, RollingBounds(0, 1), new=a_set("first", 1), old=[a_set("second", 1)], floor=True)
    assert plan.sizes == {"second": 0}


def test_the_floor_keeps_nothing_where_no_replica_is_available() -> None:
    plan = plan_scales(3, ALL_MAY_GO, new=a_set("first", 0), old=[a_set("second", 3, available=0)], floor=True)
    assert (plan.sizes["second"], plan.floor) == (0, "")


# -- recreate --------------------------------------------------------------------------------------


def test_recreate_ends_every_old_replica_before_a_new_one_starts() -> None:
    old = a_set("old", 3)
    assert plan_scales(3, RollingBounds(0, 3), new=None, old=[old], recreate=True) == ScalePlan({"old": 0})
    ending = replace(old, replicas=0, copies=1)
    waiting = plan_scales(3, RollingBounds(0, 3), new=None, old=[ending], recreate=True)
    assert (waiting.sizes, waiting.first_size) == ({}, None)
    unaware = replace(old, replicas=0, copies=0, observed=False)
    assert plan_scales(3, RollingBounds(0, 3), new=None, old=[unaware], recreate=True).first_size is None
    gone = replace(old, replicas=0, copies=0)
    assert plan_scales(3, RollingBounds(0, 3), new=None, old=[gone], recreate=True).first_size == 3


# -- scaling and pausing ---------------------------------------------------------------------------


def test_a_paused_rollout_creates_and_scales_no_replica_set() -> None:
    assert plan_scales(4, RollingBounds(1, 1), new=None, old=[a_set("old", 4)], paused=True) == ScalePlan({})
    mix = plan_scales(
        4,
        RollingBounds(1, 1),
        new=a_set("new", 2, desired=4, most=5),
        old=[a_set("old", 3, desired=4, most=5)],
        paused=True,
    )
    assert mix.sizes == {}


def test_a_paused_deployment_still_scales() -> None:
    assert plan_scales(7, RollingBounds(2, 1), new=None, old=[a_set("old", 4)], paused=True).sizes == {"old": 7}


def test_scaling_in_mid_rollout_keeps_the_proportions() -> None:
    new, old = a_set("new", 5, desired=10, most=13), a_set("old", 8, desired=10, most=13, created="0")
    plan = plan_scales(15, RollingBounds(3, 2), new=replace(new, created="1"), old=[old])
    assert plan.sizes == {"old": 11, "new": 7}
    smaller = plan_scales(5, RollingBounds(3, 2), new=replace(new, created="1"), old=[old])
    assert smaller.sizes == {"old": 5, "new": 3}


def test_the_rounding_rest_goes_to_the_largest() -> None:
    old, new = a_set("old", 6, desired=10, most=11), a_set("new", 5, desired=10, most=11)
    assert sum(plan_scales(12, RollingBounds(2, 2), new=new, old=[old]).sizes.values()) == 14


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(1, 15), min_size=2, max_size=4), st.integers(0, 5))
def test_scaling_never_leaves_the_bounds(desired: int, before: int, sizes: list[int], surge: int) -> None:
    assume(desired != before)
    every = [a_set(f"s{n}", size, desired=before, most=before + surge) for n, size in enumerate(sizes)]
    plan = plan_scales(desired, RollingBounds(surge, 1), new=every[0], old=every[1:])
    after = [plan.sizes.get(each.name, each.replicas) for each in every]
    limit = desired + surge if desired else 0
    assert all(size >= 0 for size in after)
    assert sum(after) <= max(limit, sum(sizes))
    assert sum(after) >= min(limit, sum(sizes))


# -- properties: a rollout played through ----------------------------------------------------------


@dataclass(slots=True)
class ReplicaSetModel:
    """A ReplicaSet with its pods. It follows its spec late, reports later, and never has more copies than requested."""

    name: str
    created: str
    size: int
    generation: int = 1
    acted: int = 0
    observed: int = 0
    starting: int = 0
    ready: int = 0
    leaving: int = 0
    statuses: tuple[int, int] = (0, 0)
    notes: tuple[int, int] | None = None

    @property
    def copies(self) -> int:
        return self.starting + self.ready + self.leaving

    def resize(self, size: int, notes: tuple[int, int]) -> None:
        if size != self.size:
            self.size, self.generation = size, self.generation + 1
        self.notes = notes

    def act(self) -> None:
        surplus = max(0, self.starting + self.ready - self.size)
        unready = min(surplus, self.starting)
        self.starting -= unready  # nothing to drain
        self.ready -= surplus - unready
        self.leaving += surplus - unready
        self.starting += max(0, self.size - self.copies)
        self.acted = self.generation

    def report(self) -> None:
        """The status at the end of a reconcile: it is about the generation that the reconcile read."""
        self.statuses, self.observed = (self.copies, self.ready), self.acted

    def facts(self) -> SetFacts:
        desired, most = self.notes or (None, None)
        return SetFacts(
            self.name,
            self.size,
            copies=self.statuses[0],
            available=self.statuses[1],
            observed=self.observed == self.generation,
            created=self.created,
            desired=desired,
            most=most,
        )


@dataclass(slots=True)
class DeploymentModel:
    """A Deployment with its ReplicaSets, the newest last."""

    desired: int
    bounds: RollingBounds
    recreate: bool = False
    paused: bool = False
    revisions: int = 1
    sets: list[ReplicaSetModel] = field(default_factory=list)
    current: str = "r1"

    def plan(self) -> ScalePlan:
        facts = {each.name: each.facts() for each in self.sets}
        new = facts.pop(self.current, None)
        return plan_scales(
            self.desired, self.bounds, new=new, old=[*facts.values()], recreate=self.recreate, paused=self.paused
        )

    def step(self) -> ScalePlan:
        plan = self.plan()
        notes = (self.desired, self.desired + self.bounds.surge)
        for each in self.sets:
            each.resize(plan.sizes.get(each.name, each.size), notes)
        if plan.first_size is not None:
            self.sets.append(ReplicaSetModel(self.current, f"{len(self.sets):04}", plan.first_size, notes=notes))
        return plan

    def copies(self) -> int:
        return sum(each.copies for each in self.sets)

    def ready(self) -> int:
        return sum(each.ready for each in self.sets)

    def settle(self, rounds: int = 300) -> None:
        """All controllers work and all pods start, until nothing is left to plan."""
        for _ in range(rounds):
            before = [replace(each) for each in self.sets]
            plan = self.step()
            for each in self.sets:
                each.act()
                each.ready, each.starting, each.leaving = each.ready + each.starting, 0, 0
                each.act()
                each.report()
            if not plan.sizes and plan.first_size is None and before == self.sets:
                return
        raise AssertionError(f"no rest: {self.sets}")


SEEDS = st.integers(0, 2**32).map(Random)
"""A rollout needs long runs of likely moves; a generator produces them better than rules drawn one by one."""


def some_of(chance: Random, count: int) -> int:
    return chance.randint(0, count)


def play(model: DeploymentModel, chance: Random) -> Iterator[None]:
    """One round: the Deployment plans, and each ReplicaSet acts, starts, stops and reports, or does not."""
    if chance.random() < 0.7:
        model.step()
    for each in model.sets:
        for move in chance.sample(range(5), 5):
            if chance.random() < 0.5:
                continue
            match move:
                case 0 | 1:
                    each.act()
                case 2:
                    started = some_of(chance, each.starting)
                    each.starting, each.ready = each.starting - started, each.ready + started
                case 3:
                    each.leaving -= some_of(chance, each.leaving)
                case 4:
                    each.report()
            yield


def come_to_rest(model: DeploymentModel) -> None:
    model.paused = False
    model.settle()
    sizes = {each.name: each.size for each in model.sets if each.size}
    assert sizes == ({model.current: model.desired} if model.desired else {})
    assert model.ready() == model.copies() == model.desired
    plan = model.plan()
    assert (dict(plan.sizes), plan.first_size) == ({}, None)


@settings(max_examples=300)
@given(SEEDS, st.integers(1, 6), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_rollout_stays_within_surge_and_unavailable_and_comes_to_rest(
    chance: Random, desired: int, surge: int, unavailable: int, recreate: bool
) -> None:
    """Templates change at any time, ReplicaSets are late, pods start at any time."""
    bounds = RollingBounds(0, desired) if recreate else resolve_bounds(spec(desired, surge, unavailable))
    model = DeploymentModel(desired, bounds, recreate)
    model.settle()
    for _ in range(40):
        if chance.random() < 0.1:
            model.current = f"r{chance.randint(1, 3)}"
        model.paused = chance.random() < 0.1
        for _ in play(model, chance):
            assert model.copies() <= desired + bounds.surge
            assert model.ready() >= desired - bounds.unavailable
            if recreate:
                assert sum(each.copies > 0 for each in model.sets) <= 1, "two revisions ran at once"
    come_to_rest(model)


@settings(max_examples=300)
@given(SEEDS, st.integers(0, 6), st.integers(0, 3), st.integers(0, 3))
def test_scaling_and_failures_never_cause_more_copies_than_allowed(
    chance: Random, desired: int, surge: int, unavailable: int
) -> None:
    model = DeploymentModel(desired, resolve_bounds(spec(desired, surge, unavailable)))
    model.settle()
    ceiling = desired + model.bounds.surge
    for _ in range(40):
        if chance.random() < 0.1:
            model.current = f"r{chance.randint(1, 3)}"
        if chance.random() < 0.1:
            model.desired = chance.randint(0, 6)
            model.bounds = resolve_bounds(spec(model.desired, surge, unavailable))
            ceiling = max(ceiling, model.desired + model.bounds.surge)
        for each in model.sets:
            if chance.random() < 0.1:
                failed, died = some_of(chance, each.ready), some_of(chance, each.starting)
                each.ready -= failed
                each.starting += failed - died
        for _ in play(model, chance):
            assert model.copies() <= ceiling
    come_to_rest(model)
