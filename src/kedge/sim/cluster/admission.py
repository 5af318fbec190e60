"""Admission policies for a simulated cluster, as data: what they look at, what they write in, what they refuse.

Scenario files write them down, and `PolicyChurn` changes them in mid-run, not on every server at once. They are
policies of the service like any other, so what they did is recorded in each object.
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
    """One policy: it writes `merge` into what it looks at, or refuses it with the words of `refuse`."""

    name: str
    kinds: tuple[str, ...]
    """Key kinds, as in `Deployment.apps`."""
    merge: Mapping[str, Any] = field(default_factory=dict)
    refuse: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    """By dotted path: what an object must say to be looked at."""
    verbs: tuple[str, ...] = ("create", "update")


def chain_of(plans: Sequence[PolicyPlan], *, revision: int = 0) -> AdmissionChain:
    """The policies as a server runs them. `revision` is recorded with every mutation: which version of them it was."""
    made = [(plan, _policy(plan, revision)) for plan in plans]
    return AdmissionChain(
        mutating=[policy for plan, policy in made if plan.merge],
        validating=[policy for plan, policy in made if plan.refuse],
    )


def _policy(plan: PolicyPlan, revision: int) -> FunctionPolicy:
    def looks_at(request: AdmissionRequest) -> bool:
        return all(_at(request.object, path) == value for path, value in plan.where.items())

    def mutate(request: AdmissionRequest, _: object) -> Sequence[Mapping[str, Any]]:
        return tuple(merging(request.object, plan.merge)) if looks_at(request) else ()

    def validate(request: AdmissionRequest, _: object) -> Iterator[str]:
        if looks_at(request):
            yield plan.refuse

    return FunctionPolicy(
        plan.name, kinds=plan.kinds, verbs=plan.verbs, revision=revision, mutate=mutate, validate=validate
    )


def merging(there: Mapping[str, Any], wanted: Mapping[str, Any], path: str = "") -> Iterator[dict[str, Any]]:
    """The JSON patch that merges `wanted` into `there`; nothing if it says so already."""
    for name, value in wanted.items():
        at, old = f"{path}/{name.replace('~', '~0').replace('/', '~1')}", there.get(name, _ABSENT)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from merging(old, value, at)
        elif old != value:
            yield {"op": "add", "path": at, "value": value}


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


class PolicyChurn:
    """What policies write changes every so often, and each server follows at its own pace: a fault like any other."""

    def __init__(self, cluster: Cluster, kinds: Sequence[str] = (POD_KIND, REPLICA_SET_KIND, DEPLOYMENT_KIND)) -> None:
        self._cluster = cluster
        self._kinds = tuple(kinds)
        self.changes = 0

    async def run(self) -> None:
        """Ask again and again until faults have stopped; then all have the same policies. Run it on the driver."""
        sim, servers = self._cluster.sim, self._cluster.servers
        chain = AdmissionChain()
        while sim.faults.active:
            await asyncio.sleep(EVERY_S)
            followed = sim.faults.at(ADMISSION, "cluster", FAULTS.kinds_at(ADMISSION))
            if followed:
                self.changes += 1
                chain = chain_of(self._plans(), revision=self.changes)
                only = [sim.faults.pick("it follows", servers)] if followed == "one server" else servers
                self._cluster.admit_by(chain, servers=[host.name for host in only])
        self._cluster.admit_by(chain)

    def _plans(self) -> list[PolicyPlan]:
        """A label of its own on everything, and on what is made from templates too."""
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
