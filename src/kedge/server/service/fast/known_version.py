"""An update of the version that this server saw last: it needs no read, because the commit proves the version.

`writes.change` has the plain path, which reads. If another server has replaced the version, the commit fails, and the
next attempt takes the plain path.
"""

from __future__ import annotations

from typing import Any

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.keys import Key
from kedge.server.service.admission import AdmissionChain
from kedge.server.service.core import Core


def known_version(
    core: Core, key: Key, version: Any, chain: AdmissionChain | None, options: WriteOptions
) -> Object | None:
    """The object at the version that a request names; None on any doubt."""
    if not version or chain is not None or options.dry_run:
        return None  # policies read first, and a dry run commits nothing that could prove it
    return core.remembered(key, version)
