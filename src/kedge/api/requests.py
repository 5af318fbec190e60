"""Requests to the API, as data, and the replies to them: one closed union for clients, transports and the service.

`api.verbs` has a typed method for each request; the service dispatches on its type. A transport carries any of them, so
it needs no method a verb. Labels, fault points, retries and authorization derive from the properties here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from kedge.api.codec import parse_object, splice_list
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.wellknown import NODE_ALLOCATION_KIND, RESERVATION_KIND
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision

Reply = TypeVar("Reply")
Body = bytes | Mapping[str, Any]
"""An object as JSON, encoded or decoded."""

# -- options -----------------------------------------------------------------------------------------


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every request."""

    caller: str = ""
    """The user, as authentication established it."""
    origin: Origin = NO_ORIGIN
    """The operation id of a write, and the decision behind the request."""
    acting_as: str = ""
    """The user that the sender impersonates for this request; itself if it is empty."""


class GetOptions(RequestOptions, frozen=True, kw_only=True):
    """How fresh the object must be. The words are those of the Kubernetes API."""

    resource_version: str = ""


class ListOptions(RequestOptions, frozen=True, kw_only=True):
    """Which objects, how many, and how fresh. The words are those of the Kubernetes API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""

    @property
    def selects(self) -> bool:
        """Whether a selector narrows the list."""
        return bool(self.label_selector or self.field_selector)


class WatchOptions(RequestOptions, frozen=True, kw_only=True):
    """Which objects, after which version, and for how long. The words are those of the Kubernetes API."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_s: float | None = None


class WriteOptions(RequestOptions, frozen=True, kw_only=True):
    """Options of every write."""

    dry_run: bool = False
    """Do everything but commit."""
    fence: Fence | None = None
    """The token of a leader: the commit fails with `Fenced` once it is deposed."""
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
    """How long a pod may take to stop; None for the pod's own grace period. 0 removes the object at once."""


GET: Final = GetOptions()
LIST: Final = ListOptions()
WATCH: Final = WatchOptions()
WRITE: Final = WriteOptions()
DELETE: Final = DeleteOptions()

# -- bodies ------------------------------------------------------------------------------------------


class PatchType(Enum):
    """How to read the body of a patch."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    """Lists merge by key, as `api.types` declares: only for kinds that it describes."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Put this pod on that node, if the state it was decided on still allows it."""

    pod: Key
    pod_uid: str = ""
    node: str
    node_uid: str = ""
    decided_on: Mapping[str, Revision] = {}
    """Revisions of the objects the decision used, by `str(key)`: kept beside those the commit proved."""


class BoundObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object in the namespace of a token's account: the token ends with it."""

    kind: str
    name: str
    uid: str = ""


class GangPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one member of a gang is to run."""

    pod: str
    pod_uid: str
    node: str
    node_uid: str = ""
    slot: int = 0


class GangChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Reserve places for some members of a gang in one commit. The gang's own fields are the same in every chunk."""

    namespace: str
    gang: str
    """The name of the gang's record, and the value of its pods' label `kedge.dev/gang`."""
    size: int
    """How many members must hold a place before any is bound."""
    deadline: datetime
    """After it, any client may abort the gang, unless it is committed."""
    workload_uid: str = ""
    generation: int = 0
    places: Sequence[GangPlace] = ()
    commit: bool = False
    """Commit the gang with this chunk, which must be its last."""


# -- replies -----------------------------------------------------------------------------------------


class Written(msgspec.Struct, frozen=True):
    """The object as the write left it. For a removal: its last state."""

    object: Object
    warnings: tuple[str, ...] = ()
    removed: bool = False
    unanswered_s: float = 0.0
    """How long it had no answer, if the reply was lost and the client found the write by a read or a repeat; else 0."""
    replaced: Revision = NO_REVISION
    """The version before the write, as the server proved it; 0 for a new object, a repeat, and over HTTP."""


class IssuedToken(msgspec.Struct, frozen=True):
    """A token of a ServiceAccount."""

    token: str
    expires: datetime


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


class EventType(StrEnum):
    """The type of a watch event."""

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


# -- requests ----------------------------------------------------------------------------------------


class Request(msgspec.Struct, Generic[Reply], frozen=True):
    """One call of the API, answered with a `Reply`. `AnyRequest` lists its members."""

    label: ClassVar[str]
    """Its name in metrics, audit records, fault points and traces."""
    verb: ClassVar[str]
    """The Kubernetes verb that authorization checks on `target` and `subresource`."""
    reads: ClassVar[bool] = False
    """It has no effect, so it may be repeated after any failure."""
    once: ClassVar[bool] = False
    """A repeat could do more than the first attempt, even under the same operation id: it is sent once."""
    part: ClassVar[str] = ""
    """The subresource of every request of the class."""

    @property
    def options(self) -> RequestOptions:
        raise NotImplementedError

    @property
    def target(self) -> Key:
        """The object, or the collection: a part that the request leaves open is empty."""
        raise NotImplementedError

    @property
    def subresource(self) -> str:
        return self.part

    @property
    def written_key(self) -> Key | None:
        """The object that carries the operation id once the write is made; None if the request does not name it."""
        target = self.target
        return target if target.name else None


class ObjectRequest(Request[Reply], Generic[Reply], frozen=True):
    """A request about one object, named by its key."""

    key: Key

    @property
    def target(self) -> Key:
        return self.key


class Get(ObjectRequest[Object], frozen=True):
    """Read one object: the newest, and no older than the version in the options."""

    label = verb = "get"
    reads = True

    options: GetOptions = GET


class GetScale(ObjectRequest[Mapping[str, Any]], frozen=True):
    """Read the replica count of a workload, as an `autoscaling/v1` Scale."""

    label, verb = "get_scale", "get"
    part = "scale"
    reads = True

    options: GetOptions = GET


class List(Request[ObjectList], frozen=True):
    """Read one page of a kind."""

    label = verb = "list"
    reads = True

    kind: Kind
    options: ListOptions = LIST

    @property
    def target(self) -> Key:
        return Key(self.kind.key_kind, self.options.namespace, "")


class OpenWatch(Request[None], frozen=True):
    """Open a stream of events. It goes through `open_watch`, not `send`: its reply is the stream."""

    label = verb = "watch"
    reads = True

    kind: Kind
    options: WatchOptions = WATCH

    @property
    def target(self) -> Key:
        return Key(self.kind.key_kind, self.options.namespace, "")


class Create(Request[Written], frozen=True):
    """Create an object in `namespace`, which may be left to the body."""

    label = verb = "create"

    kind: Kind
    body: Body
    namespace: str = ""
    options: WriteOptions = WRITE

    @property
    def target(self) -> Key:
        """With an empty name if the server generates it.

        Raises:
            BadRequest: the body is no JSON object.
        """
        body = self.body if isinstance(self.body, Mapping) else parse_object(self.body)
        metadata = body.get("metadata")
        if not isinstance(metadata, Mapping):
            metadata = {}
        name = metadata.get("name")
        namespace = (self.namespace or str(metadata.get("namespace") or "")) if self.kind.namespaced else ""
        return Key(self.kind.key_kind, namespace, name if isinstance(name, str) else "")


class Update(ObjectRequest[Written], frozen=True):
    """Replace an object, or a subresource of it."""

    label = verb = "update"

    body: Body
    subresource: str = ""
    options: WriteOptions = WRITE


class Patch(ObjectRequest[Written], frozen=True):
    """Change some fields of an object, or of a subresource of it. The body is JSON, encoded or decoded."""

    label = verb = "patch"

    body: Any
    patch_type: PatchType = PatchType.MERGE
    subresource: str = ""
    options: WriteOptions = WRITE


class Delete(ObjectRequest[Written], frozen=True):
    """Delete an object: at once, or after its grace period and its finalizers."""

    label = verb = "delete"

    options: DeleteOptions = DELETE


class DeleteCollection(Request[Sequence[Written]], frozen=True):
    """Delete each object that the selection finds. A repeat would also delete objects created since."""

    label, verb = "delete_collection", "deletecollection"
    once = True

    kind: Kind
    selection: ListOptions = LIST
    options: DeleteOptions = DELETE

    @property
    def target(self) -> Key:
        return Key(self.kind.key_kind, self.selection.namespace, "")


class Bind(Request[Written], frozen=True):
    """Bind a pod to a node. The reply is the pod."""

    label, verb = "bind", "create"
    part = "binding"

    binding: Binding
    options: WriteOptions = WRITE

    @property
    def target(self) -> Key:
        return self.binding.pod


class Reserve(Request[Written], frozen=True):
    """Reserve places for some members of a gang. The reply is the gang's record."""

    label, verb = "reserve", "create"
    part = "gang"

    chunk: GangChunk
    options: WriteOptions = WRITE

    @property
    def target(self) -> Key:
        return Key(RESERVATION_KIND, self.chunk.namespace, self.chunk.gang)


class Evict(ObjectRequest[Written], frozen=True):
    """Delete a pod if its disruption budget allows."""

    label, verb = "evict", "create"
    part = "eviction"

    options: DeleteOptions = DELETE


class ConfirmEnded(Request[Written], frozen=True):
    """Release the claim of a pod of which nothing runs any more. The reply is the node's ledger."""

    label, verb = "confirm_ended", "create"
    part = "ended"

    node: str
    node_uid: str
    pod_uid: str
    options: WriteOptions = WRITE

    @property
    def target(self) -> Key:
        return Key(NODE_ALLOCATION_KIND, "", self.node)

    @property
    def written_key(self) -> Key | None:
        return None  # every bind to the node writes the ledger too, and replaces the operation id on it


class RequestToken(ObjectRequest[IssuedToken], frozen=True, kw_only=True):
    """Sign a token for a ServiceAccount. Nothing is stored, so a repeat makes one more token and does no harm."""

    label, verb = "request_token", "create"
    part = "token"
    reads = True

    audiences: tuple[str, ...] = ()
    """Parties that the token is for; none stands for the API server."""
    expiration_s: int = 3600
    bound: BoundObject | None = None
    options: GetOptions = GET


AnyRequest = (
    Get
    | GetScale
    | List
    | OpenWatch
    | Create
    | Update
    | Patch
    | Delete
    | DeleteCollection
    | Bind
    | Reserve
    | Evict
    | ConfirmEnded
    | RequestToken
)
"""The closed union. Every member but `OpenWatch` goes through `send`."""


def named(request: Request[Reply], caller: str, groups: tuple[str, ...] = ()) -> Request[Reply]:
    """A write with the name of its caller beside it, for transports on which no server authenticates one."""
    if request.reads:
        return request
    replace, options = msgspec.structs.replace, request.options
    if options.acting_as:
        caller, groups = options.acting_as, ()
    origin = options.origin._replace(caller=caller, groups=groups)
    return replace(request, options=replace(options, caller=caller, origin=origin))
