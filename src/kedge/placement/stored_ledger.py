"""A node's ledger as it is stored: the encoded text of each claim is kept, so that a new claim encodes only itself.

Pure, as `ledger` is. A stored ledger is a function of its bytes, so one that was decoded earlier can be reused for the
same bytes. The service charges and releases on it; `ledger_of` decodes every claim, for readers that need them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kedge.api.codec import encode_json
from kedge.api.quantity import format_units, parse_quantity, units
from kedge.api.views import AllocationEntry
from kedge.api.views.kedge_dev import NodeAllocationSpec
from kedge.api.views.schema import decoder_of
from kedge.caches import remembered, weighed
from kedge.errors import check
from kedge.placement.ledger import Claim, ClaimState, HostPort, claim_of
from kedge.placement.resources import Units, add, subtract


class _LedgerBodyStatus(msgspec.Struct):
    allocated: dict[str, str] = {}
    entries: dict[str, msgspec.Raw] = {}


class _LedgerBody(msgspec.Struct):
    api_version: msgspec.Raw = msgspec.field(name="apiVersion")
    kind: msgspec.Raw
    metadata: msgspec.Raw
    spec: NodeAllocationSpec = NodeAllocationSpec()
    status: _LedgerBodyStatus = msgspec.field(default_factory=_LedgerBodyStatus)


_DECODER = msgspec.json.Decoder(_LedgerBody)
_UNADMITTED = b'"state":"%b"' % ClaimState.UNADMITTED.encode()
"""In the text of a claim these bytes stand nowhere else: a quote inside a string is escaped."""


class StoredLedger:
    """One node's claims and their bytes. Immutable: `charge` and `release` return a new one.

    Invariant: `allocated` is the sum of the claims' requests.
    """

    __slots__ = ("_envelope", "_texts", "_value", "allocated", "node_uid")

    def __init__(self, envelope: bytes, node_uid: str, allocated: Units, texts: Mapping[str, bytes]) -> None:
        self._envelope = envelope
        """Everything up to the status."""
        self._texts = texts
        """By pod uid: the claim as encoded in `status.entries`, its key included."""
        self._value: bytes | None = None
        self.node_uid = node_uid
        self.allocated = allocated

    @classmethod
    def blank(cls, api_version: str, kind: str, metadata: Mapping[str, Any], node_uid: str) -> StoredLedger:
        head = encode_json({"apiVersion": api_version, "kind": kind, "metadata": metadata})[:-1]
        return cls(_envelope(head, node_uid), node_uid, {}, {})

    @classmethod
    def read(cls, value: bytes) -> StoredLedger:
        """Decode a stored `NodeAllocation`. Only the service writes it, so it has no other fields."""
        stored = _DECODER.decode(value)
        head = b'{"apiVersion":%b,"kind":%b,"metadata":%b' % (
            bytes(stored.api_version), bytes(stored.kind), bytes(stored.metadata),
        )  # fmt: skip
        allocated = {name: units(name, parse_quantity(text)) for name, text in stored.status.allocated.items()}
        texts = {uid: b"%b:%b" % (encode_json(uid), bytes(text)) for uid, text in stored.status.entries.items()}
        ledger = cls(_envelope(head, stored.spec.node_uid), stored.spec.node_uid, allocated, texts)
        ledger._value = value
        return ledger

    @property
    def value(self) -> bytes:
        """The stored form."""
        if self._value is None:
            self._value = b'%b,"status":{"allocated":%b,"entries":{%b}}}' % (
                self._envelope,
                _allocated(tuple(self.allocated.items())),
                b",".join(self._texts.values()),
            )
        return self._value

    def __bool__(self) -> bool:
        """Whether there is any claim."""
        return bool(self._texts)

    def __contains__(self, uid: str) -> bool:
        return uid in self._texts

    def claim(self, uid: str) -> Claim | None:
        """The claim of a pod on this node, if it has one."""
        text = self._texts.get(uid)
        if text is None:
            return None
        return claim_of(decoder_of(AllocationEntry).decode(text[len(encode_json(uid)) + 1 :]))

    def unadmitted(self) -> list[str]:
        """The uids of the pods that wait for the node to admit them."""
        return [uid for uid, text in self._texts.items() if _UNADMITTED in text]

    def has_proved(self) -> bool:
        """Whether any claim is a bound pod's or a reservation's."""
        return any(_UNADMITTED not in text for text in self._texts.values())

    def claims(self) -> Iterator[tuple[str, Claim]]:
        """Every claim with its pod's uid. It decodes them all: do not use it in a bind."""
        for uid in self._texts:
            claim = self.claim(uid)
            assert claim is not None
            yield uid, claim

    def ports(self) -> tuple[HostPort, ...]:
        if not any(b'"ports":' in text for text in self._texts.values()):
            return ()
        return tuple(port for _, claim in self.claims() for port in claim.ports)

    def charge(self, uid: str, claim: Claim) -> StoredLedger:
        """Add a claim, or replace the one this pod has."""
        freed = self.release(uid) if uid in self._texts else self
        texts = {**freed._texts, uid: _text(uid, claim)}
        return StoredLedger(self._envelope, self.node_uid, add(freed.allocated, claim.requests), texts)

    def release(self, uid: str) -> StoredLedger:
        """Drop a claim; a pod that has none changes nothing."""
        claim = self.claim(uid)
        if claim is None:
            return self
        allocated = subtract(self.allocated, claim.requests)
        check(all(amount >= 0 for amount in allocated.values()), "a ledger went below zero")
        texts = dict(self._texts)
        del texts[uid]
        return StoredLedger(self._envelope, self.node_uid, allocated, texts)

    def handed_to(self, node_uid: str) -> StoredLedger:
        """The ledger of the node's next incarnation: it takes over the claims that wait for a node of its name."""
        head = self._envelope[: -len(_envelope(b"", self.node_uid))]
        waiting = self.unadmitted()
        kept = add(*(claim.requests for uid in waiting if (claim := self.claim(uid)) is not None))
        return StoredLedger(_envelope(head, node_uid), node_uid, kept, {uid: self._texts[uid] for uid in waiting})


def _envelope(head: bytes, node_uid: str) -> bytes:
    """The part that no claim changes: `head` with its spec."""
    return b'%b,"spec":{"nodeUID":%b}' % (head, encode_json(node_uid))


@remembered(entries=4096, entry_bytes=16 * 1024, key_length=16)  # resources have names of at most 317 characters
def _allocated(amounts: tuple[tuple[str, int], ...]) -> bytes:
    """The encoded sum; cached, because it is the same on many nodes."""
    return encode_json(_quantities(dict(amounts)))


def _text(uid: str, claim: Claim) -> bytes:
    """A claim as encoded in `status.entries`."""
    rest = _rest(claim.namespace, claim.state, tuple(claim.requests.items()), claim.ports, claim.zone)
    if claim.granted is not None:  # rare, so it is not part of the cached text
        rest = b'"granted":%b,%b' % (encode_json(_quantities(claim.granted)), rest)
    return b'%b:{"name":%b,%b' % (encode_json(uid), encode_json(claim.name), rest)


@weighed(entries=4096, bytes_max=16 << 20)
def _rest(
    namespace: str, state: ClaimState, requests: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...], zone: str
) -> bytes:
    """All of a claim but its name; cached, because it is the same for replicas."""
    entry: dict[str, Any] = {
        "namespace": namespace,
        "state": state.value,
        "requests": _quantities(dict(requests)),
    }
    if ports:
        entry["ports"] = [{"protocol": p.protocol, "hostIP": p.host_ip, "hostPort": p.port} for p in ports]
    if zone:
        entry["zone"] = zone
    return encode_json(entry)[1:]


def _quantities(amounts: Units) -> dict[str, str]:
    return {resource: format_units(resource, amount) for resource, amount in amounts.items()}
