"""Resource usage of a node's pods, as its agent reports it: one annotation on the node's lease, for all its pods.

Agents write it with `format_usage` when they renew the lease, under `wellknown.USAGE`; the autoscaler reads it with
`parse_usage`. So the report of a node that does not renew is known to be old.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from kedge.api.quantity import Quantity
from kedge.api.timestamps import format_time
from kedge.api.views.base import ApiStruct, FrozenMap, Int32, ResourceList, Time, map_field
from kedge.api.views.schema import dec_hook


class UsageReport(ApiStruct, frozen=True):
    """One measurement of a whole node."""

    at: Time | None = None
    """The time of the measurement, by the node's clock."""
    window_seconds: Int32 = 0
    """Rates are averages over this many seconds before."""
    pods: FrozenMap[str, FrozenMap[str, ResourceList]] = map_field()
    """Usage of each resource, by pod uid and container."""


def format_usage(at: datetime, window_s: int, pods: Mapping[str, Mapping[str, Mapping[str, Quantity]]]) -> str:
    """Encode a report."""
    by_pod = {
        uid: {container: {name: str(amount) for name, amount in used.items()} for container, used in containers.items()}
        for uid, containers in pods.items()
    }
    return msgspec.json.encode({"at": format_time(at), "windowSeconds": window_s, "pods": by_pod}).decode()


def parse_usage(text: str) -> UsageReport:
    """Decode a report.

    Raises:
        ValueError: it is malformed. Treat the usage as missing.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is not a usage report: {error}") from error


_DECODER = msgspec.json.Decoder(UsageReport, dec_hook=dec_hook)
