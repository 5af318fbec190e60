"""The base of every verb of the service: the store, the kinds, and writes that prove their reads.

A verb is an attempt: it reads through a `Proof`, decides, and stages writes. The commit checks everything that it read.
After a lost race the attempt runs again on fresh reads, so no verb handles a conflict itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.api.codec import encode_object
from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.requests import WatchEvent, WriteOptions, Written
from kedge.api.timestamps import format_time
from kedge.api.wellknown import NODE_ALLOCATION_KIND
from kedge.env import Env
from kedge.errors import Conflict, Forbidden, KedgeError, Unavailable, check
from kedge.keys import NO_REVISION, Fence, Key, Revision
from kedge.observe.records import AdmissionAct
from kedge.server.service.access.authorizer import Authorizer
from kedge.server.service.admission import AdmissionChain
from kedge.server.service.admission_records import AdmissionRecords
from kedge.server.service.initial_bytes import InitialBytes
from kedge.server.service.ledgers import Ledgers
from kedge.store import Absent, AtRevision, Batch, Check, DeleteKey, Entry, Put, Store, Write
from kedge.store.versions import fenced

if TYPE_CHECKING:
    from kedge.server.service.account_tokens import TokenKeys
    from kedge.server.service.credentials.signing_rules import CertificateSigner

_SERVICE_ONLY = frozenset({NODE_ALLOCATION_KIND})


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of a document that is about to be edited. A null, which may stand anywhere, becomes an empty part."""
    found = document.get(name)
    if not isinstance(found, dict):
        found = document[name] = {}
    return found


def name_only(kind: Kind, key: Key) -> bytes:
    """An object with nothing but its name, for one whose last state is no longer stored."""
    name = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})}
    return encode_object({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": name})


def check_open_to_callers(kind: Kind) -> None:
    """Raise `Forbidden` for a kind that no request may write."""
    if kind.key_kind in _SERVICE_ONLY:
        raise Forbidden(f"{kind.plural} are written by the service alone: bind, reserve or delete pods instead")


class Staged(msgspec.Struct, frozen=True, gc=False):
    """The result of an attempt: the object as it will be once the staged writes are committed."""

    kind: Kind
    key: Key
    value: bytes
    created: Revision = NO_REVISION
    """The revision of its create; `NO_REVISION` if this commit creates it."""
    warnings: tuple[str, ...] = ()
    removed: bool = False
    view: Any = None
    """The typed view of `value`, if the attempt decoded it already."""


class Unsettled(KedgeError):
    """An attempt needs other commits to be made first. `settle` makes them."""

    def __init__(self, settle: Callable[[WriteOptions], Awaitable[None]]) -> None:
        super().__init__("other commits must be made first: make them, then try again")
        self.settle = settle


class Proof:
    """Reads that the commit will check, and writes that it will make.

    Invariant: every key in `writes` is in `reads`. Nothing is written unread.
    """

    __slots__ = ("_core", "_held", "acts", "dry_run", "reads", "subject", "writes")

    def __init__(self, core: Core, *, dry_run: bool = False) -> None:
        self._core = core
        self._held: asyncio.Lock | None = None
        self.dry_run = dry_run
        """Nothing will be committed: the limits of a commit do not apply, and no other commit may be made first."""
        self.reads: dict[Key, Entry | None] = {}
        self.writes: dict[Key, Write] = {}
        self.subject: Object | None = None
        """The object that the write is about, as far as it is known: for the record of its admission."""
        self.acts: list[AdmissionAct] = []
        """The changes and refusals of policies."""

    def note(self, policy: str | Key, verb: str, detail: str, revision: Revision = NO_REVISION) -> None:
        """Note what a policy did, for the record of this write. A key is an object that this attempt has read."""
        if isinstance(policy, Key):
            found = self.known(policy)
            policy, revision = str(policy), NO_REVISION if found is None else found.revision
        self.acts.append(AdmissionAct(policy, revision, verb, detail))

    async def entries(self, *keys: Key) -> list[Entry | None]:
        """Read keys, each once: a later read in the same attempt sees the same version."""
        reads = self.reads
        missing: Sequence[Key] = [key for key in keys if key not in reads] if reads else keys
        if missing:
            if self._core.contended and self._held is None:
                await self._queue_for(missing)
            reading = await self._core.store.get(missing)
            reads.update(zip(missing, reading.entries, strict=True))
            if missing is keys:
                return list(reading.entries)
        return [reads[key] for key in keys]

    async def objects(self, *keys: Key) -> list[Object | None]:
        return [None if entry is None else self._core.object_of(entry) for entry in await self.entries(*keys)]

    async def object(self, key: Key) -> Object | None:
        if key not in self.reads:
            await self.entries(key)
        entry = self.reads[key]
        return None if entry is None else self._core.object_of(entry)

    def assume(self, found: Object) -> None:
        """Count a version as read. The commit proves it; an attempt that writes nothing proves nothing."""
        self.reads[found.key] = Entry(found.key, found.value, found.created, found.revision, found.origin)

    def known(self, key: Key) -> Object | None:
        """The object under a key that this attempt has read; None if it is absent, or was not read."""
        entry = self.reads.get(key)
        return None if entry is None else self._core.object_of(entry)

    def revision_of(self, key: Key) -> Revision:
        """The version under a key that this attempt has read; 0 if it was absent."""
        entry = self.reads.get(key)
        return NO_REVISION if entry is None else entry.modified

    def put(self, key: Key, value: bytes, *, latest_only: bool = False) -> None:
        self.writes[key] = Put(key, value, latest_only)

    def delete(self, key: Key) -> None:
        self.writes[key] = DeleteKey(key)

    def checks(self) -> list[Check]:
        return [Absent(key) if entry is None else AtRevision(key, entry.modified) for key, entry in self.reads.items()]

    def release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    async def _queue_for(self, keys: Sequence[Key]) -> None:
        """Wait for the lock of the first contended key. One lock an attempt, so no deadlock."""
        for key in keys:
            lock = self._core.contended.get(key)
            if lock is not None:
                await lock.acquire()
                self._held = lock
                return


def staged_value(proof: Proof, found: Entry | Object) -> bytes:
    """The bytes of `found`, with the changes of this attempt: two effects on one object must add up."""
    write = proof.writes.get(found.key)
    return write.value if isinstance(write, Put) else found.value


def staged_object(proof: Proof, found: Object) -> Object:
    """`found`, with the changes of this attempt."""
    value = staged_value(proof, found)
    if value is found.value:
        return found
    return Object(found.kind, found.key, value, revision=found.revision, created=found.created)


Attempt = Callable[[Proof], Awaitable[Staged | Written]]
"""Reads, decides and stages. Returns `Written` if the operation was made before."""


class Core:
    """The state of a service. Handlers take it as their first argument."""

    def __init__(
        self, store: Store, env: Env, kinds: Registry, admission: AdmissionChain, token_keys: TokenKeys | None
    ) -> None:
        self.store = store
        self.env = env
        self.kinds = kinds
        self.admission = admission
        self.ledgers = Ledgers(env)
        self.certificate_signer: CertificateSigner | None = None
        """Has the key of the authority; None on a server that signs no certificates."""
        self.token_keys = token_keys
        """The keys of ServiceAccount tokens; None on a server that signs none."""
        self.admission_records: AdmissionRecords | None = None
        """Set by `Service.record_to`."""
        self.contended: dict[Key, asyncio.Lock] = {}
        """Keys that attempts lately lost races on. A reader of such a key waits for its lock instead of racing."""
        self._objects: dict[Key, Object] = {}
        self._object_bytes = 0
        """The bytes of the values of `_objects`."""
        self._in_flight: dict[Key, Staged] = {}
        """Objects of commits in flight: a watch delivers them before the commit returns, and shares their views."""
        self.shared_events: dict[bool, tuple[Batch, Sequence[WatchEvent]]] = {}
        """The last batch of the store as events, with and without a bookmark: `watches` shares them."""
        self.initial_bytes = InitialBytes(env)
        self._marks: deque[tuple[float, Revision]] = deque()  # when this server saw which revision; one a sweep
        self._stamp = ""
        self._stamp_until_s = float("-inf")
        metrics = env.metrics
        self._attempts = metrics.counter("kedge_service_proof_attempts_total", "Lost races by kind of key", ("kind",))
        self.scanned = metrics.counter("kedge_service_list_scanned_total", "Objects scanned by lists with selectors")
        self.admission_rounds = metrics.counter("kedge_service_admission_rounds_total", "Passes over mutating policies")
        self.generated_names = metrics.counter(
            "kedge_service_generated_names_total", "Names generated for generateName"
        )
        self.origin_reads = metrics.counter(
            "kedge_service_origin_versions_total", "Versions read to find the write behind a condition"
        )
        self.namespace_quotas = metrics.gauge("kedge_service_namespace_quotas", "Quotas of the last changed namespace")
        self.unadmitted = metrics.gauge(
            "kedge_service_unadmitted_pods", "Pods that the node named last by a create has yet to admit"
        )
        self.tokens = metrics.counter(
            "kedge_service_tokens_total", "Tokens of ServiceAccounts, by outcome", ("outcome",)
        )
        self.accounts_restored = metrics.counter(
            "kedge_service_accounts_restored_total", "Default ServiceAccounts made again after they were deleted"
        )
        self.certificates = metrics.counter(
            "kedge_service_certificates_total", "Certificates for approved requests, by outcome", ("outcome",)
        )
        self.credentials_expired = metrics.counter(
            "kedge_service_credentials_expired_total", "Requests and tokens deleted at the end of their time", ("kind",)
        )
        self.access = Authorizer(self)
        self.operations = metrics.gauge("kedge_service_operations", "Operation ids kept at the last sweep")
        self.events_expired = metrics.counter("kedge_events_expired_total", "Events deleted at the end of their time")
        metrics.gauge("kedge_service_object_cache", "Decoded objects cached").set_function(lambda: len(self._objects))
        metrics.gauge(
            "kedge_service_object_cache_bytes", "Stored bytes of the decoded objects that are cached"
        ).set_function(lambda: self._object_bytes)

    # -- objects -----------------------------------------------------------------------------------

    def kind_of(self, key: Key) -> Kind:
        return self.kinds.of_key_kind(key.kind)

    def object_of(self, entry: Entry, *, remember: bool = True) -> Object:
        """The object of a stored version, decoded once for all readers. A list passes `remember=False`."""
        key = entry.key
        known = self._objects.get(key)
        if known is not None and known.revision == entry.modified:
            return known
        pending = self._in_flight.get(key)
        found = Object(
            self.kinds.of_key_kind(key.kind),
            key,
            entry.value,
            revision=entry.modified,
            created=entry.created,
            origin=entry.origin,
            known_view=pending.view if pending is not None and pending.value == entry.value else None,
        )
        if remember and (known is None or known.revision < entry.modified):
            self.remember(found)
        return found

    def remember(self, found: Object) -> None:
        objects, limits, key = self._objects, self.env.limits, found.key
        before = objects.get(key)
        size = self._object_bytes + len(found.value) - (0 if before is None else len(before.value))
        if size > limits.object_cache_bytes_max or (before is None and len(objects) >= limits.object_cache_max):
            objects.pop(key, None)
            for oldest in list(objects)[: len(objects) // 8 + 1]:
                del objects[oldest]
            size = sum(len(each.value) for each in objects.values()) + len(found.value)
            if size > limits.object_cache_bytes_max:
                objects.clear()
                size = len(found.value)
        self._object_bytes = size
        objects[key] = found

    def remembered(self, key: Key, version: str) -> Object | None:
        """A version of an object, if this server saw it last. It need not be the newest."""
        known = self._objects.get(key)
        return known if known is not None and str(known.revision) == version else None

    def forget(self, key: Key) -> None:
        known = self._objects.pop(key, None)
        if known is not None:
            self._object_bytes -= len(known.value)

    def timestamp(self) -> str:
        """The current time, as objects store it."""
        # Cached until the second is over: every write needs it.
        tick_s = self.env.monotonic()
        if tick_s >= self._stamp_until_s:
            now = self.env.now()
            self._stamp = format_time(now)
            self._stamp_until_s = tick_s + 1 - now.microsecond / 1e6
        return self._stamp

    def passed_window(self, revision: Revision) -> Revision:
        """Note the current revision, and return that of a whole operation window ago.

        By this server's own monotonic clock: the clocks of two servers may differ by more than a window.
        """
        now_s = self.env.monotonic()
        horizon_s = now_s - self.env.limits.operation_window_s
        self._marks.append((now_s, revision))
        while len(self._marks) > 1 and self._marks[1][0] <= horizon_s:
            self._marks.popleft()
        seen_s, seen = self._marks[0]
        return seen if seen_s <= horizon_s else NO_REVISION

    # -- commits -----------------------------------------------------------------------------------

    async def delete_all(self, entries: Sequence[Entry]) -> int:
        """Delete old entries in steps. Returns how many: a step with an entry that has changed is left to the next."""
        deleted, step = 0, self.env.limits.commit_ops_max // 2
        for start in range(0, len(entries), step):
            part = entries[start : start + step]
            try:
                await self.store.commit(
                    [AtRevision(each.key, each.modified) for each in part], [DeleteKey(each.key) for each in part]
                )
            except Conflict:
                continue  # written again, or deleted by another server
            deleted += len(part)
        return deleted

    async def prove(self, attempt: Attempt, options: WriteOptions) -> Written:
        """Run an attempt and commit what it staged; on a lost race, run it again on fresh reads."""
        lost: Conflict | None = None
        for _ in range(self.env.limits.proof_attempts_max):
            proof = Proof(self, dry_run=options.dry_run)
            try:
                staged = await attempt(proof)
                if isinstance(staged, Written):
                    return staged  # a repeat of an earlier operation
                if options.dry_run or not proof.writes:
                    if options.fence is not None:
                        await self._check_fence(options.fence)
                    return self._unwritten(proof, staged, dry_run=options.dry_run)
                if staged.view is not None and not staged.removed:
                    self._in_flight[staged.key] = staged
                try:
                    revision = await self.store.commit(
                        proof.checks(), list(proof.writes.values()), fence=options.fence, origin=options.origin
                    )
                except Conflict as conflict:
                    lost = conflict
                    self._note_contention(conflict)
                    continue
                finally:
                    self._in_flight.pop(staged.key, None)
            except Forbidden as error:
                if self.admission_records is not None and not options.dry_run:
                    self.admission_records.refused(proof.subject, proof.acts, error, options)
                raise
            except Unsettled as unsettled:
                proof.release()  # the other commits may need the same lock
                await unsettled.settle(_prior_options(options))
                continue
            finally:
                proof.release()
            if proof.acts and self.admission_records is not None:
                self.admission_records.admitted(staged.key, proof.subject, proof.acts, revision, options)
            return self._written(proof, staged, revision, options)
        raise Unavailable(
            f"{lost.key if lost else 'a key'} was changed by other writes {self.env.limits.proof_attempts_max} times"
            " before this write could commit: try again later",
            key=lost.key if lost else None,
        )

    async def _check_fence(self, fence: Fence) -> None:
        """Check the fence of a write that changes nothing: there is no commit that would."""
        entry = (await self.store.get([fence.key])).entries[0]
        if entry is None or entry.modified != fence.revision:
            raise fenced(fence, entry)

    def _written(self, proof: Proof, staged: Staged, revision: Revision, options: WriteOptions) -> Written:
        write = proof.writes.get(staged.key)
        check(
            isinstance(write, DeleteKey) if staged.removed else isinstance(write, Put) and write.value is staged.value,
            "an attempt returns the object that it staged",
        )
        known = self._objects.get(staged.key)
        if known is not None and known.revision == revision and not staged.removed:
            return Written(known, staged.warnings, replaced=proof.revision_of(staged.key))  # a watch delivered it first
        found = Object(
            staged.kind,
            staged.key,
            staged.value,
            revision=revision,
            created=staged.created or revision,
            origin=options.origin,
            known_view=staged.view,
        )
        if staged.removed:
            self.forget(staged.key)
        else:
            self.remember(found)
        return Written(found, staged.warnings, staged.removed, replaced=proof.revision_of(staged.key))

    def _unwritten(self, proof: Proof, staged: Staged, *, dry_run: bool) -> Written:
        """The reply to a write without effect is the current object; to a dry run, the would-be object."""
        entry = proof.reads.get(staged.key)
        if entry is not None and not dry_run:
            return Written(self.object_of(entry), staged.warnings, staged.removed, replaced=entry.modified)
        found = Object(
            staged.kind,
            staged.key,
            staged.value,
            revision=entry.modified if entry is not None else NO_REVISION,
            created=staged.created,
        )
        return Written(found, staged.warnings, staged.removed)

    def _note_contention(self, conflict: Conflict) -> None:
        key = conflict.key
        if key is None:
            return
        self._attempts.labels(key.kind).inc()
        self.queue_on(key)

    def queue_on(self, key: Key) -> None:
        """From now on attempts that read `key` wait for each other instead of racing."""
        for idle in [k for k, lock in self.contended.items() if not lock.locked()]:
            del self.contended[idle]
        self.contended.setdefault(key, asyncio.Lock())


def _prior_options(options: WriteOptions) -> WriteOptions:
    """The options of commits that must be made first: the same decision, but not the operation itself."""
    return WriteOptions(caller=options.caller, fence=options.fence, origin=options.origin._replace(operation=""))
