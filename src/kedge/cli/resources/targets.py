"""The objects that a command is about: by name, by label or by manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kedge.cli.resources.arguments import check_targets
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.manifests import read_manifests
from kedge.cli.resources.session import Session, references
from kedge.errors import NotFound


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
        NotFound: the server has no such kind.
    """
    catalog = await session.catalog()
    found = []
    for each in read_manifests(filenames, recursive=recursive):
        metadata = each.body["metadata"]
        try:
            kind = catalog.of_manifest(each.body)
        except NotFound as error:
            raise NotFound(f"{each.where}: {error}") from error
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
        UsageError: nothing is chosen, or in two ways at once.
        BadRequest: a file is no manifest.
    """
    check_targets(words, filenames, selector=selector, everything=everything)
    if filenames:
        return await manifest_targets(session, filenames, recursive=recursive)
    found: list[Target] = []
    for kind, name in await references(session, words):
        if name:
            found.append(Target(kind, session.namespace, name))
            continue
        listed = await session.list(kind, {"labelSelector": selector} if selector else {})
        found += [Target(kind, session.namespace, each["metadata"]["name"]) for each in listed]
    return found
