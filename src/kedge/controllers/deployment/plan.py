"""The plan of a Deployment: the next size of each of its ReplicaSets. Pure.

It never requests more copies than desired plus surge, and never deletes available replicas below desired minus
unavailable. While a ReplicaSet has not observed its last size, the plan waits: the number of its copies is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kedge.api.views.workloads import DeploymentSpec
from kedge.errors import check


@dataclass(frozen=True, slots=True)
class RollingBounds:
    """How far a rolling update may go above and below the desired replicas."""

    surge: int
    unavailable: int


def resolve_bounds(spec: DeploymentSpec) -> RollingBounds:
    """The bounds as counts. As in Kubernetes, a percentage is rounded up for surge and down for unavailable.

    If both are 0, one replica may be unavailable: otherwise a rollout could not progress.
    """
    rolling = spec.strategy.rolling_update
    if spec.strategy.type == "Recreate":
        return RollingBounds(0, spec.replicas)
    surge = scaled(rolling.max_surge if rolling is not None else "25%", spec.replicas, round_up=True)
    unavailable = scaled(rolling.max_unavailable if rolling is not None else "25%", spec.replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return RollingBounds(surge, min(unavailable, spec.replicas))


def scaled(value: int | str, total: int, *, round_up: bool) -> int:
    """A count, or a percentage of `total`, as a count."""
    if isinstance(value, int):
        return value
    product = int(value.removesuffix("%")) * total
    return -(-product // 100) if round_up else product // 100


@dataclass(frozen=True, slots=True)
class SetFacts:
    """The plan's input for one ReplicaSet."""

    name: str
    replicas: int
    """The size in its spec."""
    copies: int = 0
    """Its pods that have not ended, draining and stopping pods included, by its last status."""
    available: int = 0
    observed: bool = True
    """Its status is about its current spec."""
    created: str = ""
    revision: int = 0
    desired: int | None = None
    """The replicas of the Deployment when it last scaled this one; `most` adds the surge."""
    most: int | None = None
    held: bool = False
    """A person holds it."""

    @property
    def copies_max(self) -> int:
        """Copies there may be while its spec stays. Only true of one that is observed: it fills up to its spec, and
        what it had beyond that when it saw that spec can only have become less."""
        return max(self.replicas, self.copies)

    @property
    def available_kept(self) -> int:
        """Available replicas once it has followed its spec: it gives the others up first."""
        return min(self.available, self.replicas)


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The new sizes of the ReplicaSets that change, and the first size of one to create."""

    sizes: Mapping[str, int]
    first_size: int | None = None
    waits_for: str = ""
    """The cause that blocks the next step; empty if there is none."""
    floor: str = ""
    """The replica that the availability floor keeps; empty if the floor does not hold anything back."""


def plan_scales(
    desired: int,
    bounds: RollingBounds,
    *,
    new: SetFacts | None,
    old: Sequence[SetFacts],
    recreate: bool = False,
    paused: bool = False,
    updated_max: int | None = None,
    floor: bool = False,
) -> ScalePlan:
    """The next step towards all replicas in `new`; None if `new` is not created yet.

    `updated_max` limits the replicas of `new`; the others stay in `old`. Replicas that `new` already has stay. With
    `floor` the last available replica of `old` stays until `new` has one, whatever the bounds allow.
    """
    check(desired >= 0, "admission rejects a negative replica count")
    if floor and (recreate or bounds.unavailable >= desired) and (kept := _last_available(desired, new, old)):
        # A single replica needs one more copy: otherwise neither could go first.
        lower = RollingBounds(max(bounds.surge, int(desired == 1)), desired - 1)
        plan = plan_scales(desired, lower, new=new, old=old, paused=paused, updated_max=updated_max)
        return replace(plan, waits_for=plan.waits_for or "an available replica of the new template", floor=kept)
    every = [*old, new] if new is not None else [*old]
    if paused or any(each.desired not in (None, desired) for each in every if each.replicas > 0):
        return _without_held(_resize(desired, bounds, new, old, recreate=recreate), every)
    if recreate:
        return _without_held(_recreate(desired, new, old), every)
    return _without_held(_roll(desired, bounds, new, old, updated_max), every)


def _last_available(desired: int, new: SetFacts | None, old: Sequence[SetFacts]) -> str:
    """The old ReplicaSet that has the only available replicas; empty if there is none, or if `new` has some too."""
    if new is None or desired < 1 or new.available_kept > 0:
        return ""
    return next((each.name for each in sorted(old, key=_oldest_first) if each.available_kept > 0), "")


def _without_held(plan: ScalePlan, every: Sequence[SetFacts]) -> ScalePlan:
    held = {each.name for each in every if each.held}
    sizes = {
        each.name: plan.sizes[each.name]
        for each in every
        if plan.sizes.get(each.name, each.replicas) != each.replicas and each.name not in held
    }
    return replace(plan, sizes=sizes)


def _unobserved(every: Sequence[SetFacts]) -> str:
    waited = [each.name for each in every if not each.observed]
    return f"{waited[0]} to see its size" if waited else ""


def _room(limit: int, every: Sequence[SetFacts]) -> int:
    """How many copies may be added: 0 while the number of copies is unknown."""
    if _unobserved(every):
        return 0
    return max(0, limit - sum(each.copies_max for each in every))


# -- rolling update --------------------------------------------------------------------------------


def _roll(
    desired: int, bounds: RollingBounds, new: SetFacts | None, old: Sequence[SetFacts], updated_max: int | None
) -> ScalePlan:
    every = [*old, new] if new is not None else [*old]
    size = new.replicas if new is not None else 0
    if size > desired:
        check(new is not None, "only a ReplicaSet that exists has a size")
        assert new is not None
        return ScalePlan({new.name: desired})
    goal = desired if updated_max is None else min(desired, max(updated_max, size))
    step = min(goal - size, _room(desired + bounds.surge, every))
    if new is None:
        return ScalePlan({}, first_size=step)
    if step > 0:
        return ScalePlan({new.name: size + step})
    sizes = _shrink_old(desired - bounds.unavailable, new, old, old_min=desired - goal)
    moves = any(sizes[each.name] != each.replicas for each in old if each.name in sizes)
    waits = _unobserved(every) or ("the next stage of its rollout" if size == goal else "")
    return ScalePlan(sizes, waits_for=waits if size < desired and not moves else "")


def _shrink_old(available_min: int, new: SetFacts, old: Sequence[SetFacts], *, old_min: int = 0) -> dict[str, int]:
    """Scale down old ReplicaSets: first unavailable replicas, then available ones above the minimum.

    A new replica that is not available yet may never be: it does not count towards the minimum.
    """
    active = sorted((each for each in old if each.replicas > 0 and not each.held), key=_oldest_first)
    every = [*old, new]
    left = sum(e.replicas for e in every) - available_min - (new.replicas - new.available_kept)
    left = min(left, sum(e.replicas for e in old) - old_min)
    spare = sum(each.available_kept for each in every) - available_min
    sizes = {each.name: each.replicas for each in active}
    for each in active:
        unhealthy = min(each.replicas - each.available_kept, max(0, left))
        sizes[each.name] -= unhealthy
        left -= unhealthy
    for each in active:
        healthy = min(each.available_kept, sizes[each.name], max(0, spare), max(0, left))
        sizes[each.name] -= healthy
        spare -= healthy
        left -= healthy
    return sizes


def _oldest_first(each: SetFacts) -> tuple[str, str]:
    return each.created, each.name


# -- recreate --------------------------------------------------------------------------------------


def _recreate(desired: int, new: SetFacts | None, old: Sequence[SetFacts]) -> ScalePlan:
    """All old replicas end first, to the last process; then all new ones are created."""
    sizes = {each.name: 0 for each in old if each.replicas > 0}
    if sizes:
        return ScalePlan(sizes)
    if waits := _unended(old):
        return ScalePlan({}, waits_for=waits)
    if new is None:
        return ScalePlan({}, first_size=desired)
    return ScalePlan({new.name: desired})


def _unended(others: Sequence[SetFacts]) -> str:
    """The ReplicaSet of another revision whose pods have not ended; empty if there is none."""
    waited = [each.name for each in others if each.copies_max > 0 or not each.observed]
    return f"the pods of {waited[0]} to end" if waited else ""


# -- scaling during a rollout, or while it is paused -----------------------------------------------


def _resize(
    desired: int, bounds: RollingBounds, new: SetFacts | None, old: Sequence[SetFacts], *, recreate: bool
) -> ScalePlan:
    every = [*old, new] if new is not None else [*old]
    active = [each for each in every if each.replicas > 0]
    limit = desired + bounds.surge if desired > 0 else 0
    if len(active) <= 1:
        only = active[0] if active else new if new is not None else max(old, key=_oldest_first, default=None)
        if only is None:
            return ScalePlan({})
        if desired <= only.replicas:
            return ScalePlan({only.name: desired})
        if recreate and (waits := _unended([each for each in every if each is not only])):
            return ScalePlan({}, waits_for=waits)
        return ScalePlan({only.name: min(desired, only.replicas + _room(limit, every))})
    if new is not None and new.replicas == new.available == desired and new.desired == desired:
        return ScalePlan({each.name: 0 for each in old})
    if recreate:
        return ScalePlan({each.name: 0 for each in active if each is not new})
    return ScalePlan(_in_proportion(desired, limit, active, room=_room(limit, every)))


def _in_proportion(desired: int, limit: int, active: Sequence[SetFacts], *, room: int) -> dict[str, int]:
    """Distribute the difference by size, the rounding rest to the largest, so that the proportions stay."""
    to_add = limit - sum(each.replicas for each in active)
    if to_add > 0:
        to_add = min(to_add, room)
    newest = sorted(active, key=_oldest_first, reverse=to_add > 0)
    by_size = sorted(newest, key=lambda each: -each.replicas)
    sizes, added = {}, 0
    for each in by_size:
        before = each.most or sum(other.replicas for other in active)
        share = -each.replicas if desired == 0 else _rounded(each.replicas * limit, before) - each.replicas
        left = to_add - added
        share = max(0, min(share, left)) if to_add > 0 else min(0, max(share, left))
        sizes[each.name] = each.replicas + share
        added += share
    largest = by_size[0].name
    sizes[largest] = max(0, sizes[largest] + to_add - added)
    return sizes


def _rounded(amount: int, of: int) -> int:
    return (2 * amount + of) // (2 * of) if of > 0 else amount
