"""Owner references: the owners of an object, and its controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedge.api.views import ObjectMeta, OwnerReference, View

if TYPE_CHECKING:
    from kedge.api.kinds import Kind


def controller_of(view: View | ObjectMeta) -> OwnerReference | None:
    """The one owner that manages the object, if any."""
    metadata = view.metadata if isinstance(view, View) else view
    for owner in metadata.owner_references:
        if owner.controller:
            return owner
    return None


def is_owned_by(view: View | ObjectMeta, uid: str) -> bool:
    """Whether an object with this uid is among the owners. One with the same name and another uid is not."""
    metadata = view.metadata if isinstance(view, View) else view
    return any(owner.uid == uid for owner in metadata.owner_references)


def owner_reference(
    kind: Kind, owner: View | ObjectMeta, *, controller: bool = True, block_owner_deletion: bool = True
) -> dict[str, Any]:
    """A reference to `owner`, as JSON for the metadata of a dependent."""
    metadata = owner.metadata if isinstance(owner, View) else owner
    reference: dict[str, Any] = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata.name,
        "uid": metadata.uid,
    }
    if controller:
        reference["controller"] = True
    if block_owner_deletion:
        reference["blockOwnerDeletion"] = True
    return reference
