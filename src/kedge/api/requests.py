"""What callers ask of the API and what they get back: shared by the service and every client transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum

import msgspec

from kedge.api.codec import splice_list
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may accompany any write."""

    caller: str = ""
    """Who asks, as authentication knows them."""
    dry_run: bool = False
    """Do everything but commit."""
    fence: Fence | None = None
    """The token of a leader: the commit fails with `Fenced` once it is deposed."""
    origin: Origin = NO_ORIGIN
    recorded: bool = True
    """Keep a record of the operation id, so that a repeat gets the first outcome. Not needed by a write that names the
    resource version it replaces, such as a lease's renewal: that can take effect only once anyhow."""


class DeleteOptions(WriteOptions, frozen=True, kw_only=True):
    """How to delete, and on what condition."""

    uid: str = ""
    """Delete only this incarnation of the name."""
    revision: Revision = NO_REVISION
    """Delete only this version."""
    propagation: str = ""
    """`Background`, `Foreground` or `Orphan`; empty for the kind's default."""
    grace_s: int | None = None
    """How long a pod may take to stop; None for what the pod says. 0 removes the object at once."""


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects, how many, and how fresh. The words are those of the Kubernetes API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects, from where on, and for how long. The words are those of the Kubernetes API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_s: float | None = None


class PatchType(Enum):
    """How to read the body of a patch."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"


class Written(msgspec.Struct, frozen=True):
    """The object as the write left it. For a removal: its last state."""

    object: Object
    warnings: tuple[str, ...] = ()
    removed: bool = False


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Put this pod on that node, if what was true when it was decided still allows it."""

    pod: Key
    pod_uid: str = ""
    node: str
    node_uid: str = ""
    decided_on: Mapping[str, Revision] = {}
    """Revisions of the objects the decision used, by `str(key)`: kept beside those the commit proved."""


class GangPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one member of a gang is to run."""

    pod: str
    pod_uid: str
    node: str
    node_uid: str = ""
    slot: int = 0


class GangChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Reserve places for some members of a gang in one commit. What describes the gang is the same in every chunk."""

    namespace: str
    gang: str
    """The name of the gang's record, and the value of its pods' label `kedge.dev/gang`."""
    size: int
    """How many members must hold a place before any is bound."""
    deadline: datetime
    """From then on anybody may abort the gang, unless it is committed."""
    workload_uid: str = ""
    generation: int = 0
    places: Sequence[GangPlace] = ()
    commit: bool = False
    """Commit the gang with this chunk, which must be its last."""


class EventType(StrEnum):
    """What a watch event says."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch. `object` is None for a bookmark."""

    type: EventType
    object: Object | None
    revision: Revision
    initial_end: bool = False
    """On the bookmark that closes the initial events: everything listed so far is the state at `revision`."""


class ObjectList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list, all at one revision."""

    kind: Kind
    objects: Sequence[Object]
    revision: Revision
    continue_token: str = ""
    remaining: int | None = None
    """How many more there are; None where selectors make that unknown, and on the last page."""

    def json(self) -> bytes:
        """The list as a client sees it, spliced from stored bytes."""
        return splice_list(
            self.kind.api_version,
            self.kind.kind,
            self.objects,
            self.revision,
            self.continue_token,
            self.remaining or 0,
        )
