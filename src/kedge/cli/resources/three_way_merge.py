"""One apply: create the object, or send the patch between the last manifest, this manifest and the live object."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import msgspec

from kedge.api.patch import apply_merge_patch
from kedge.api.strategic_diff import plan_strategic_patch
from kedge.api.strategic_merge import apply_strategic_merge
from kedge.api.types import type_table
from kedge.api.wellknown import LAST_APPLIED
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.manifests import Manifest
from kedge.cli.resources.session import Session
from kedge.errors import AlreadyExists, BadRequest, Conflict

ATTEMPTS = 5
"""A live object that changes between read and write is read again this often."""
QUERY = {"fieldManager": "kubectl-client-side-apply", "fieldValidation": "Strict"}


class Applied(NamedTuple):
    """The outcome of one apply."""

    kind: ResourceType
    body: dict[str, Any]
    verdict: str
    """`created`, `configured` or `unchanged`."""


async def apply_manifest(session: Session, manifest: Manifest, *, dry_run: str) -> Applied:
    """Apply one manifest. `dry_run` is `none`, `client` or `server`.

    Raises:
        BadRequest: the manifest is for another namespace than the one asked for.
        Conflict: the object changes too often.
    """
    kind = (await session.catalog()).of_manifest(manifest.body)
    name = manifest.body["metadata"]["name"]
    namespace = str(manifest.body["metadata"].get("namespace") or session.namespace)
    wanted = with_last_applied(manifest.body, namespace if kind.namespaced else "")
    query = {**QUERY, **({"dryRun": "All"} if dry_run == "server" else {})}
    for _ in range(ATTEMPTS):
        live = await session.find(kind, name, namespace)
        try:
            if live is None and dry_run == "client":
                return Applied(kind, wanted, "created")
            if live is None:
                path = session.path(kind, namespace=namespace)
                body = await session.rest.call("POST", path, query=query, body=wanted)
                return Applied(kind, body, "created")
            patch, patch_type = plan_patch(wanted, live)
            if not patch:
                return Applied(kind, live, "unchanged")
            if dry_run == "client":
                return Applied(kind, patched(live, patch), "configured")
            body = await session.rest.call(
                "PATCH",
                session.path(kind, name, namespace=namespace),
                query=query,
                body=patch,
                content_type=f"application/{patch_type}-patch+json",
            )
        except (AlreadyExists, Conflict):
            continue  # another writer was faster: decide again on the newer object
        same = body["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
        return Applied(kind, body, "unchanged" if same and dry_run == "none" else "configured")
    raise Conflict(f"{kind.label}/{name} changed {ATTEMPTS} times while it was applied: apply it again")


def patched(live: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The live object as the patch would leave it, before the server's defaults and policies. Pure."""
    table = type_table()
    facts = table.of_kind(str(live["apiVersion"]), str(live["kind"]))
    if facts is None:
        merged: dict[str, Any] = apply_merge_patch(live, patch)
        return merged
    return apply_strategic_merge(live, patch, facts, table)


def with_last_applied(body: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The manifest with itself in kubectl's annotation: both programs can apply the same object in turn."""
    wanted = copy.deepcopy(body)
    metadata = wanted["metadata"]
    if namespace:
        metadata["namespace"] = namespace
    annotations = metadata.get("annotations")
    if annotations is not None and not isinstance(annotations, dict):
        raise BadRequest(f"{wanted['kind']} {metadata['name']}: write metadata.annotations as a map of texts")
    metadata["annotations"] = {each: value for each, value in (annotations or {}).items() if each != LAST_APPLIED}
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":  # as Go writes JSON: kubectl must find the same text
        text = text.replace(character, f"\\u{ord(character):04x}")
    metadata["annotations"][LAST_APPLIED] = text + "\n"
    return wanted


def plan_patch(wanted: dict[str, Any], live: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The patch that makes `live` as `wanted`, and its type. Pure."""
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        last = msgspec.json.decode(text) if text else {}
    except msgspec.MsgspecError:
        last = {}
    if not isinstance(last, dict):
        last = {}
    table = type_table()
    facts = table.of_kind(str(wanted["apiVersion"]), str(wanted["kind"]))
    ours = {name: value for name, value in wanted.items() if name != "status"}
    before = {name: value for name, value in last.items() if name in live and name != "status"}
    # Its own annotation is no reason to write: it is sent along with a change of something else.
    patch = plan_strategic_patch(before, ours, live, facts, table)
    return patch, "merge" if facts is None else "strategic-merge"
