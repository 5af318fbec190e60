"""Patches of any type, applied to a document. `writes` decides which changes are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kedge.api.codec import decode_json, encode_json
from kedge.api.patch import apply_merge_patch, json_patch_steps
from kedge.api.requests import Patch, PatchType
from kedge.api.strategic_merge import apply_strategic_merge
from kedge.api.types import type_table
from kedge.errors import BadRequest, UnsupportedMediaType
from kedge.limits import Limits

Document = dict[str, Any]
_LONG_BODY_BYTES: Final = 32_000
"""As 2,500 short fields: they are decoded, merged, validated and written in 7 ms."""


async def own_step(body: bytes) -> None:
    """End the step of the event loop that has decoded or merged a long body: a megabyte takes some milliseconds."""
    if len(body) > _LONG_BODY_BYTES:
        await asyncio.sleep(0)


async def patched(document: Document, request: Patch, limits: Limits) -> Document:
    """`document` with the patch of a request applied, as plain JSON. Other tasks run during a long patch."""
    body = request.body if isinstance(request.body, bytes) else encode_json(request.body)
    change_body = decode_json(body)
    await own_step(body)
    if request.patch_type is PatchType.JSON:
        if not isinstance(change_body, list):
            raise BadRequest("a JSON patch is a list of operations")
        result = await _json_patched(document, change_body, limits)
    else:
        if not isinstance(change_body, dict):
            raise BadRequest("a merge patch is an object")
        strategic = request.patch_type is PatchType.STRATEGIC
        result = _strategic_merge(document, change_body) if strategic else apply_merge_patch(document, change_body)
        await own_step(body)
    if not isinstance(result, dict):
        raise BadRequest("the patch leaves no object behind")
    return result


async def _json_patched(document: Document, operations: list[Any], limits: Limits) -> Document:
    steps = json_patch_steps(document, operations, bytes_max=limits.commit_bytes_max)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: Document = finished.value
            return result
        await asyncio.sleep(0)


def _strategic_merge(document: Document, change_body: Mapping[str, Any]) -> Document:
    table = type_table()
    api_version, kind = str(document.get("apiVersion")), str(document.get("kind"))
    facts = table.of_kind(api_version, kind)
    if facts is None or facts.json_only:
        raise UnsupportedMediaType(
            f"{kind} in {api_version} has no strategic merge patch: send {PatchType.MERGE.value}"
        )
    return apply_strategic_merge(document, change_body, facts, table)
