"""Writes to the subresource `approval` of certificate signing requests: their conditions, and nothing else."""

from __future__ import annotations

import msgspec

from kedge.api.codec import parse_object
from kedge.api.requests import Patch, Update, Written
from kedge.server.service import writes
from kedge.server.service.core import Core


async def update_approval(core: Core, request: Update) -> Written:
    """Replace the conditions of a request, and nothing else."""
    body = parse_object(request.body)
    conditions = (body.get("status") or {}).get("conditions") or []
    body = {**body, "status": {"conditions": conditions}}
    return await writes.update(core, msgspec.structs.replace(request, body=body, subresource="status"))


async def patch_approval(core: Core, request: Patch) -> Written:
    return await writes.patch(core, msgspec.structs.replace(request, subresource="status"))
