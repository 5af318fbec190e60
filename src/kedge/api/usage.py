"""What the pods of a node use, as its agent reports it: one text beside the node's heartbeat, for all its pods.

Agents write it with `format_usage` when they renew their lease, under `marks.USAGE`; the autoscaler reads it with
`parse_usage`. A node that is silent is thereby known to report nothing.
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
    """When it was measured, by the node's clock."""
    window_seconds: Int32 = 0
    """Rates are averages over so long before that."""
    pods: FrozenMap[str, FrozenMap[str, ResourceList]] = map_field()
    """By pod uid and container: what is used of each resource."""


def format_usage(at: datetime, window_s: int, pods: Mapping[str, Mapping[str, Mapping[str, Quantity]]]) -> str:
    """The text of a report."""
    said = {
        uid: {container: {name: str(amount) for name, amount in used.items()} for container, used in containers.items()}
        for uid, containers in pods.items()
    }
    return msgspec.json.encode({"at": format_time(at), "windowSeconds": window_s, "pods": said}).decode()


def parse_usage(text: str) -> UsageReport:
    """Read a report.

    Raises:
        ValueError: it is none. Its node reports nothing, then.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no report of usage: {error}") from error


_DECODER = msgspec.json.Decoder(UsageReport, dec_hook=dec_hook)
