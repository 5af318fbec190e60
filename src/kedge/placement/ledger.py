"""The arithmetic of a node's ledger: who holds what on it, keyed by pod uid.

Pure: it turns one `NodeAllocation` into the next. The service writes the result in the same commit as the
bind, reservation or end that it accounts for. Totals equal the sum of the entries, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from kedge.api.quantity import format_units
from kedge.api.views import NodeAllocationView
from kedge.errors import check
from kedge.placement.resources import Units, add, subtract, to_units


class HostPort(NamedTuple):
    """A port of the node itself that a container asks for."""

    protocol: str
    host_ip: str
    port: int

    def clashes(self, other: HostPort) -> bool:
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.host_ip == other.host_ip or ANY_ADDRESS in (self.host_ip, other.host_ip)


ANY_ADDRESS = "0.0.0.0"


class ClaimState(StrEnum):
    """How firm an entry is."""

    RESERVED = "Reserved"
    BOUND = "Bound"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pod holds on one node."""

    namespace: str
    name: str
    state: ClaimState
    requests: Units
    ports: tuple[HostPort, ...] = ()
    zone: str = ""
    """The node's zone when the claim was made: the zone that the tenant's quotas are charged for, until release."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One node's claims. A node that comes back as another incarnation starts with none."""

    node: str
    node_uid: str
    allocated: Units = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)

    def charge(self, uid: str, claim: Claim) -> Ledger:
        """Add a claim, or replace the one this pod has."""
        freed = self.release(uid)
        return replace(
            freed,
            allocated=add(freed.allocated, claim.requests),
            claims={**freed.claims, uid: claim},
        )

    def release(self, uid: str) -> Ledger:
        """Drop a claim; a pod that has none changes nothing."""
        claim = self.claims.get(uid)
        if claim is None:
            return self
        allocated = subtract(self.allocated, claim.requests)
        check(all(amount >= 0 for amount in allocated.values()), f"the ledger of {self.node} went below nothing")
        return replace(self, allocated=allocated, claims={u: c for u, c in self.claims.items() if u != uid})

    def ports(self) -> tuple[HostPort, ...]:
        return tuple(port for claim in self.claims.values() for port in claim.ports)


def ledger_of(view: NodeAllocationView) -> Ledger:
    """Read a stored `NodeAllocation`."""
    claims = {
        uid: Claim(
            namespace=entry.namespace,
            name=entry.name,
            state=ClaimState(entry.state),
            requests=to_units(entry.requests),
            ports=tuple(HostPort(p.protocol, p.host_ip, p.host_port) for p in entry.ports),
            zone=entry.zone,
        )
        for uid, entry in view.status.entries.items()
    }
    return Ledger(view.metadata.name, view.spec.node_uid, to_units(view.status.allocated), claims)


def write_ledger(ledger: Ledger, document: dict[str, Any]) -> dict[str, Any]:
    """`document`, a `NodeAllocation` with its metadata, saying what `ledger` says."""
    entries = {}
    for uid, claim in ledger.claims.items():
        entry: dict[str, Any] = {
            "namespace": claim.namespace,
            "name": claim.name,
            "state": claim.state.value,
            "requests": _quantities(claim.requests),
        }
        if claim.ports:
            entry["ports"] = [{"protocol": p.protocol, "hostIP": p.host_ip, "hostPort": p.port} for p in claim.ports]
        if claim.zone:
            entry["zone"] = claim.zone
        entries[uid] = entry
    return {
        **document,
        "spec": {"nodeUID": ledger.node_uid},
        "status": {"allocated": _quantities(ledger.allocated), "entries": entries},
    }


def _quantities(amounts: Units) -> dict[str, str]:
    return {resource: format_units(resource, amount) for resource, amount in amounts.items()}
