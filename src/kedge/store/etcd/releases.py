"""Which etcd releases a store warns about. `EtcdStore.open` reads the release of each member once."""

from __future__ import annotations

import asyncio
import logging

from kedge.errors import OperatingError
from kedge.store.etcd import messages as m
from kedge.store.etcd.transport import STATUS, EtcdTransport, NotSent, Unanswered

_log = logging.getLogger(__name__)

UNSOUND = ("3.5.0", "3.5.1", "3.5.2")
"""Releases that can lose a member's data when it is killed (etcd#13766)."""


async def release_alarms(transport: EtcdTransport) -> dict[str, str]:
    """An alarm for each member with an unsound release, by its address. A member that does not answer has none."""

    async def release(address: str) -> tuple[str, str]:
        try:
            status = await transport.send_to(address, STATUS, m.StatusRequest())
        except (NotSent, Unanswered, OperatingError):
            return address, ""
        return address, str(status.version)

    alarms: dict[str, str] = {}
    for address, version in await asyncio.gather(*(release(each) for each in transport.addresses)):
        if version in UNSOUND:
            alarms[address] = f"{address} runs etcd {version}, which can lose data when killed (etcd#13766): upgrade it"
            _log.warning("%s", alarms[address])
    return alarms
