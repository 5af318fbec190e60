"""The arithmetic of a node's ledger: the claims of its pods, by pod uid.

Pure. `stored_ledger` is the encoded form for writes; predicates and recounts read this one. Totals always equal the sum
of the entries.
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
    """A port of the node itself that a container requests."""

    protocol: str
    host_ip: str
    port: int

    def clashes(self, other: HostPort) -> bool:
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.host_ip == other.host_ip or ANY_ADDRESS in (self.host_ip, other.host_ip)


ANY_ADDRESS = "0.0.0.0"


class ClaimState(StrEnum):
    """Whether an entry is a reservation, a bound pod, or a pod that waits for its node to admit it."""

    RESERVED = "Reserved"
    BOUND = "Bound"
    UNADMITTED = "Unadmitted"
    """The pod was created with the node's name. Nothing was proved, and nothing is started until it is admitted."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The resources and ports that one pod holds on one node."""

    namespace: str
    name: str
    state: ClaimState
    requests: Units
    ports: tuple[HostPort, ...] = ()
    zone: str = ""
    """The node's zone when the claim was made. The tenant's quota of that zone is charged until release."""
    granted: Units | None = None
    """The part of `requests` that the node was proved to have room for; None if it is all of them. The rest is a resize
    that the node has not allocated: it counts against binds, and nothing uses it."""

    @property
    def proved(self) -> Units:
        return self.requests if self.granted is None else self.granted


class Claimed(Protocol):
    """The part of a ledger that the predicates read, in either form."""

    @property
    def allocated(self) -> Units: ...

    def ports(self) -> tuple[HostPort, ...]: ...


@dataclass(frozen=True, slots=True)
class Ledger:
    """One node's claims. A new incarnation of the node starts with none."""

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
        check(all(amount >= 0 for amount in allocated.values()), f"the ledger of {self.node} went below zero")
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
        granted=to_units(entry.granted) if entry.granted is not None else None,
    )
