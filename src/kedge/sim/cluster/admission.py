"""Admission policies of a simulated cluster, as data: the objects they match, the fields they set, what they refuse.

Scenario files declare them, and `PolicyChurn` changes them in mid-run, not on every server at once. They are ordinary
policies of the service, so each mutation is recorded in its object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND, REPLICA_SET_KIND
from kedge.server.service import AdmissionChain, AdmissionRequest, FunctionPolicy
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.fault_points import ADMISSION
from kedge.sim.kernel import FAULTS

EVERY_S = 10.0
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """One policy: it merges `merge` into the objects it matches, or refuses them with the message `refuse`."""

    name: str
    kinds: tuple[str, ...]
    """Key kinds, as in `Deployment.apps`."""
    merge: Mapping[str, Any] = field(default_factory=dict)
    refuse: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    """By dotted path: the values that an object must have to match."""
    verbs: tuple[str, ...] = ("create", "update")


def chain_of(plans: Sequence[PolicyPlan], *, revision: int = 0) -> AdmissionChain:
    """The policies as a server runs them. `revision` is recorded with every mutation."""
    made = [(plan, _policy(plan, revision)) for plan in plans]
    return AdmissionChain(
        mutating=[policy for plan, policy in made if plan.merge],
        validating=[policy for plan, policy in made if plan.refuse],
    )


def _policy(plan: PolicyPlan, revision: int) -> FunctionPolicy:
    def matches(request: AdmissionRequest) -> bool:
        return all(_at(request.object, path) == value for path, value in plan.where.items())

    def mutate(request: AdmissionRequest, _: object) -> Sequence[Mapping[str, Any]]:
        return tuple(merging(request.object, plan.merge)) if matches(request) else ()

    def validate(request: AdmissionRequest, _: object) -> Iterator[str]:
        if matches(request):
            yield plan.refuse

    return FunctionPolicy(
        plan.name, kinds=plan.kinds, verbs=plan.verbs, revision=revision, mutate=mutate, validate=validate
    )


def merging(current: Mapping[str, Any], wanted: Mapping[str, Any], path: str = "") -> Iterator[dict[str, Any]]:
    """The JSON patch that merges `wanted` into `current`; empty if the values are there already."""
    for name, value in wanted.items():
        at, old = f"{path}/{name.replace('~', '~0').replace('/', '~1')}", current.get(name, _ABSENT)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from merging(old, value, at)
        elif old != value:
            yield {"op": "add", "path": at, "value": value}


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


class PolicyChurn:
    """Changes the mutating policies every few seconds, on every server or on one alone, as a fault."""

    def __init__(self, cluster: Cluster, kinds: Sequence[str] = (POD_KIND, REPLICA_SET_KIND, DEPLOYMENT_KIND)) -> None:
        self._cluster = cluster
        self._kinds = tuple(kinds)
        self.changes = 0

    async def run(self) -> None:
        """Draw a change every few seconds until faults have stopped; then every server has the same policies."""
        sim, servers = self._cluster.sim, self._cluster.servers
        chain = AdmissionChain()
        while sim.faults.active:
            await asyncio.sleep(EVERY_S)
            scope = sim.faults.at(ADMISSION, "cluster", FAULTS.kinds_at(ADMISSION))
            if scope:
                self.changes += 1
                chain = chain_of(self._plans(), revision=self.changes)
                only = [sim.faults.pick("it follows", servers)] if scope == "one server" else servers
                self._cluster.admit_by(chain, servers=[host.name for host in only])
        self._cluster.admit_by(chain)

    def _plans(self) -> list[PolicyPlan]:
        """A label that names the change, on every object and in every pod template."""
        season = f"s{self.changes}"
        return [
            PolicyPlan("season", self._kinds, {"metadata": {"labels": {"season": season}}}, verbs=("create",)),
            PolicyPlan(
                "template-season",
                tuple(kind for kind in self._kinds if kind != POD_KIND),
                {"spec": {"template": {"metadata": {"labels": {"season": season}}}}},
                verbs=("create",),
            ),
        ]
