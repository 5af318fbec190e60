"""The objects that a command is about: by name, by label or by manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.manifests import read_manifests
from kedge.cli.resources.session import Session, missing_name, references
from kedge.errors import Terminal


class Target(NamedTuple):
    """One object of a command."""

    kind: ResourceType
    namespace: str
    name: str

    @property
    def words(self) -> str:
        """As in `deployment.apps/web`."""
        return f"{self.kind.label}/{self.name}"


async def manifest_targets(session: Session, filenames: Sequence[str], *, recursive: bool = False) -> list[Target]:
    """The objects of manifests, in their order.

    Raises:
        BadRequest: a file is no manifest.
    """
    catalog = await session.catalog()
    found = []
    for each in read_manifests(filenames, recursive=recursive):
        metadata = each.body["metadata"]
        kind = catalog.of_manifest(each.body, each.where)
        found.append(Target(kind, str(metadata.get("namespace") or session.namespace), str(metadata["name"])))
    return found


async def targets(
    session: Session,
    words: Sequence[str],
    filenames: Sequence[str] = (),
    *,
    selector: str = "",
    everything: bool = False,
    recursive: bool = False,
) -> list[Target]:
    """The objects that names, labels or manifests choose.

    Raises:
        Terminal: nothing is chosen, or in two ways at once.
        BadRequest: a file is no manifest.
    """
    if filenames:
        if words:
            raise Terminal("choose objects by manifest or by name, not both: leave out -f or the names")
        return await manifest_targets(session, filenames, recursive=recursive)
    found: list[Target] = []
    for kind, name in await references(session, words):
        if name and selector:
            raise Terminal(f"{kind.label}/{name} is chosen by its name: leave out -l or the name")
        if name:
            found.append(Target(kind, session.namespace, name))
            continue
        if not selector and not everything:
            raise missing_name(kind)
        listed = await session.list(kind, {"labelSelector": selector} if selector else {})
        found += [Target(kind, session.namespace, each["metadata"]["name"]) for each in listed]
    return found
