"""The arithmetic of a node's ledger: who holds what on it, keyed by pod uid.

Pure, and the plain form of what `pages` keeps as text: those who ask whether a pod fits, or who recount, read this.
Totals equal the sum of the entries, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from kedge.api.views import AllocationEntry, NodeAllocationView
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


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds on one node."""

    namespace: str
    name: str
    state: ClaimState
    requests: Units
    ports: tuple[HostPort, ...] = ()
    zone: str = ""
    """The node's zone when the claim was made: the zone that the tenant's quotas are charged for, until release."""


class Claimed(Protocol):
    """What the predicates ask of a ledger, in whichever form."""

    @property
    def allocated(self) -> Units: ...

    def ports(self) -> tuple[HostPort, ...]: ...


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
    claims = {uid: claim_of(entry) for uid, entry in view.status.entries.items()}
    return Ledger(view.metadata.name, view.spec.node_uid, to_units(view.status.allocated), claims)


def claim_of(entry: AllocationEntry) -> Claim:
    """Read one stored claim."""
    return Claim(
        namespace=entry.namespace,
        name=entry.name,
        state=ClaimState(entry.state),
        requests=to_units(entry.requests),
        ports=tuple(HostPort(p.protocol, p.host_ip, p.host_port) for p in entry.ports),
        zone=entry.zone,
    )
