"""Patches of any type, applied to a document. `writes` decides which changes are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.codec import decode_json, encode_json
from kedge.api.patch import apply_json_patch, apply_merge_patch
from kedge.api.requests import Patch, PatchType
from kedge.api.strategic_merge import apply_strategic_merge
from kedge.api.types import type_table
from kedge.errors import BadRequest, UnsupportedMediaType
from kedge.limits import Limits

Document = dict[str, Any]


def patched(document: Document, request: Patch, limits: Limits) -> Document:
    """`document` with the patch of a request applied: plain JSON, whatever the body is made of."""
    change_body = decode_json(request.body if isinstance(request.body, bytes) else encode_json(request.body))
    if request.patch_type is PatchType.JSON:
        if not isinstance(change_body, list):
            raise BadRequest("a JSON patch is a list of operations")
        result = apply_json_patch(document, change_body, bytes_max=limits.commit_bytes_max)
    else:
        if not isinstance(change_body, dict):
            raise BadRequest("a merge patch is an object")
        strategic = request.patch_type is PatchType.STRATEGIC
        result = _strategic_merge(document, change_body) if strategic else apply_merge_patch(document, change_body)
    if not isinstance(result, dict):
        raise BadRequest("the patch leaves no object behind")
    return result


def _strategic_merge(document: Document, change_body: Mapping[str, Any]) -> Document:
    table = type_table()
    api_version, kind = str(document.get("apiVersion")), str(document.get("kind"))
    facts = table.of_kind(api_version, kind)
    if facts is None or facts.json_only:
        raise UnsupportedMediaType(
            f"{kind} in {api_version} has no strategic merge patch: send {PatchType.MERGE.value}"
        )
    return apply_strategic_merge(document, change_body, facts, table)
