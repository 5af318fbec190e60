"""Stores the rules of aggregating cluster roles, so that readers see them. The authorizer computes them itself.

Every API server does it, and writes only what differs: servers on one store write the same.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from kedge.api.requests import Patch
from kedge.api.views import PolicyRule
from kedge.api.wellknown import CLUSTER_ROLE_KIND
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.logs import WARNING
from kedge.server.service import writes
from kedge.server.service.core import Core

_PAUSE_S: Final = 0.1
"""Changes of roles come in groups."""
_RETRY_S: Final = 5.0


async def store_aggregated_rules(core: Core) -> None:
    """Write the rules of each aggregating role after each change, for ever."""
    index, changed = core.access.index, core.access.roles_changed
    while True:
        await changed.wait()
        changed.clear()
        await asyncio.sleep(_PAUSE_S)
        for name, role in sorted(index.cluster_roles.items()):
            rules = index.cluster_rules(role)
            if rules == role.rules:
                continue
            try:
                await writes.patch(core, Patch(Key(CLUSTER_ROLE_KIND, "", name), {"rules": rules_as_json(rules)}))
            except OperatingError as error:
                core.env.log.write(WARNING, "role not aggregated", {"role": name, "error": error.message})
                changed.set()
                await asyncio.sleep(_RETRY_S)


def rules_as_json(rules: tuple[PolicyRule, ...]) -> list[dict[str, Any]]:
    """Rules as in a manifest."""
    found: list[dict[str, Any]] = msgspec.to_builtins(rules)
    return found
