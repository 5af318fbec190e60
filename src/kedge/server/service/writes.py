"""Create, update and patch: from a request body to an object that may be stored.

The order is that of Kubernetes: fields that the server sets, defaults, mutating policies, validation, validating
policies. Then `effects` stages the side effects in the same commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kedge.api.codec import Draft, encode_json, encode_object, parse_object, same_content, same_json
from kedge.api.conditions import keep_transition_times
from kedge.api.defaults import apply_defaults, apply_draft_defaults
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Create, Patch, Update, WriteOptions, Written
from kedge.api.validation import check_object
from kedge.api.wellknown import (
    NAMESPACE_KIND,
    NODE_KIND,
    POD_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.errors import AlreadyExists, BadRequest, Conflict, FieldError, Forbidden, Invalid, MethodNotAllowed, NotFound
from kedge.keys import NO_REVISION, Key
from kedge.server.service import operations
from kedge.server.service.admission import AdmissionChain, AdmissionRequest, Inputs
from kedge.server.service.core import Attempt, Core, Proof, Staged, check_open_to_callers
from kedge.server.service.credentials.completion import checked_write
from kedge.server.service.deletion import ready_to_go
from kedge.server.service.effects import stage
from kedge.server.service.fast.known_version import known_version
from kedge.server.service.fast.metadata_patch import patch_metadata
from kedge.server.service.fast.pod_create import new_known_pod
from kedge.server.service.fast.pod_stage import stage_plain_pod
from kedge.server.service.limit_ranges import check_limits, limit_ranges_of, with_defaults
from kedge.server.service.namespaces import FINALIZER, STATUS_FIELDS, namespace_key
from kedge.server.service.patches import Document, patched
from kedge.server.service.priorities import DEFAULT_CLASS, is_settled, keep_priority, with_priority
from kedge.server.service.quotas import recount
from kedge.server.service.resize import check_changed, resized
from kedge.server.service.zones import recount_zones

Edit = Callable[[Document], Awaitable[Document]]
"""From the current object (with its resource version) to the one that the caller wants."""

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes: nothing that spells a word
_SERVER_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_NEVER_SENT = (*_SERVER_METADATA, "resourceVersion", "selfLink", "managedFields")
_STATUS_AT_CREATE = frozenset({NODE_KIND})
"""Kinds that are created with a status; objects of other kinds begin without one."""
_INITIAL_STATUS: dict[str, Document] = {POD_KIND: {"phase": "Pending"}, NAMESPACE_KIND: {"phase": "Active"}}
_WRITABLE = frozenset({"status", "finalize", "resize"})
"""Subresources that an update or a patch may address; the others have verbs of their own."""
_SERVICE_STATUS = {
    NAMESPACE_KIND: tuple(STATUS_FIELDS.values()),
    RESOURCE_QUOTA_KIND: ("hard", "used"),
    ZONE_QUOTA_KIND: ("zones",),
    RESERVATION_KIND: ("members",),
}
"""Status fields that only the service writes."""
_RECOUNTED = {RESOURCE_QUOTA_KIND: "used", ZONE_QUOTA_KIND: "zones"}
"""Status fields that are recounted when a status write leaves them out."""


# -- create ----------------------------------------------------------------------------------------


async def create(core: Core, request: Create) -> Written:
    kind, namespace, options = request.kind, request.namespace, request.options
    check_open_to_callers(kind)
    body = request.body if isinstance(request.body, bytes) else encode_json(request.body)
    chain = core.admission.for_write("create", kind, "")
    if chain is None and kind.key_kind == POD_KIND:
        known = new_known_pod(kind, body, namespace, core.env.new_uid, core.timestamp())
        if known is not None:
            view, value = known
            key = Key(POD_KIND, view.metadata.namespace, view.metadata.name)
            new = Object(kind, key, value, revision=NO_REVISION, known_view=view)
            return await core.prove(_attempt_to_create(core, new, (), None, options, generated=False), options)
    draft = _draft_of(core, kind, body, namespace)
    metadata = draft.metadata
    if metadata.get("name"):
        return await _create_named(core, kind, draft, chain, options, generated=False)
    prefix = metadata.get("generateName")
    if not prefix:
        raise _required(kind, "metadata.name", "name or generateName is required")
    for _ in range(core.env.limits.generated_name_attempts_max):
        core.generated_names.inc()
        suffix = "".join(core.env.random.choice(_NAME_ALPHABET) for _ in range(5))
        # Kubernetes cuts long prefixes, so that the name stays a label.
        metadata["name"] = f"{str(prefix)[: 63 - len(suffix)]}{suffix}"
        try:
            return await _create_named(core, kind, draft, chain, options, generated=True)
        except AlreadyExists:
            continue
    raise AlreadyExists(f"no free name was found for generateName {prefix!r} of {kind.kind}: try again")


def _draft_of(core: Core, kind: Kind, body: bytes, namespace: str) -> Draft:
    """The object as sent, with the fields that the server sets, and with defaults."""
    draft = Draft.parse(body)
    draft.api_version, draft.kind = _check_type(kind, draft.api_version, draft.kind)
    _check_namespace(kind, draft.metadata, namespace)
    _prepare_create(core, kind, draft)
    apply_draft_defaults(kind, draft)
    return draft


async def _create_named(
    core: Core, kind: Kind, draft: Draft, chain: AdmissionChain | None, options: WriteOptions, *, generated: bool
) -> Written:
    key = Key(kind.key_kind, draft.metadata.get("namespace", ""), draft.metadata["name"])
    value = draft.encode()
    is_key = isinstance(key.name, str) and isinstance(key.namespace, str)
    if chain is None or not is_key:
        new, warnings = _checked(kind, key, value)
        chain = None
    else:  # policies come before validation; an object without a valid key never reaches them
        new, warnings = Object(kind, key, value, revision=NO_REVISION), ()
    return await core.prove(_attempt_to_create(core, new, warnings, chain, options, generated=generated), options)


def _attempt_to_create(
    core: Core,
    sent: Object,
    warned: tuple[str, ...],
    chain: AdmissionChain | None,
    options: WriteOptions,
    *,
    generated: bool,
) -> Attempt:
    """Creates `sent`: as it is if it was validated already, else as `chain` leaves it."""
    kind, key = sent.kind, sent.key
    reads: tuple[Key, ...] = (key,)
    if kind.key_kind == POD_KIND:
        reads = (key, namespace_key(key.namespace), DEFAULT_CLASS)
    elif key.namespace:
        reads = (key, namespace_key(key.namespace))

    async def attempt(proof: Proof) -> Staged | Written:
        proof.subject = sent
        # One read for all keys: over a network each read is a round trip.
        if options.origin.operation:
            repeat = await operations.first_outcome(
                core, proof, "create", key, options, named=not generated, reads=reads
            )
            if repeat is not None:
                return repeat
        existing = await proof.entries(*reads)
        if existing[0] is not None:
            raise AlreadyExists(f'{kind.resource} "{key.name}" already exists', key=key)
        new, warnings = sent, warned
        ranges = await limit_ranges_of(proof, key.namespace) if kind.key_kind == POD_KIND else ()
        if ranges:
            new = with_defaults(proof, sent, ranges)
        if chain is not None:
            new, warnings = await _admit(core, proof, chain, "create", kind, key, "", new.edit(), None, options)
        elif new is not sent:
            new, warnings = _checked(kind, key, new.value)
        check_limits(proof, new, ranges)
        if kind.key_kind == POD_KIND and not is_settled(proof, new):
            new = await with_priority(proof, new)
        new = await checked_write(core, proof, options, None, new)
        if stage_plain_pod(proof, new) is None:
            await stage(core, proof, kind, key, None, new)
        if options.origin.operation:
            operations.record(core, proof, "create", key, options)
        return Staged(kind, key, new.value, warnings=warnings, view=new.known_view)

    return attempt


def _check_type(kind: Kind, api_version: Any, name: Any) -> tuple[str, str]:
    """Check that a body is of the kind it was sent as. A body without a kind is of that kind."""
    if (api_version or name) and (api_version, name) != (kind.api_version, kind.kind):
        raise BadRequest(
            f"the object is a {name} of {api_version}, but was sent as a {kind.kind} of {kind.api_version}"
        )
    return kind.api_version, kind.kind


def _check_namespace(kind: Kind, metadata: Document, namespace: str) -> None:
    """Check that a body is of the namespace it was sent to, and set it."""
    named = metadata.get("namespace") or ""
    if not kind.namespaced:
        if namespace or named:
            raise BadRequest(f"{kind.kind} has no namespace, but {namespace or named!r} was given: leave it out")
        metadata.pop("namespace", None)
        return
    if namespace and named and namespace != named:
        raise BadRequest(f"the namespace of the object ({named}) is not the namespace it was sent to ({namespace})")
    if not (namespace or named):
        raise BadRequest(f"{kind.kind} needs a namespace, and none was given")
    metadata["namespace"] = namespace or named


def _prepare_create(core: Core, kind: Kind, draft: Draft) -> None:
    """Set the fields that only the server may set."""
    metadata = draft.metadata
    if metadata.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    for field in _NEVER_SENT:
        if field in metadata:
            del metadata[field]
    metadata["uid"] = core.env.new_uid()
    metadata["creationTimestamp"] = core.timestamp()
    if kind.has_generation:
        metadata["generation"] = 1
    if kind.key_kind in _INITIAL_STATUS:
        draft.fields["status"] = _INITIAL_STATUS[kind.key_kind]
    elif kind.key_kind not in _STATUS_AT_CREATE and "status" in kind.subresources:
        draft.fields.pop("status", None)
    if kind.key_kind == NAMESPACE_KIND:
        draft.set("spec", {**_mapping(draft.get("spec")), "finalizers": [FINALIZER]})


# -- update and patch ------------------------------------------------------------------------------


async def update(core: Core, request: Update) -> Written:
    key, proposed = request.key, parse_object(request.body)
    kind = core.kind_of(key)
    proposed["apiVersion"], proposed["kind"] = _check_type(kind, proposed.get("apiVersion"), proposed.get("kind"))
    metadata = proposed.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise BadRequest("metadata must be an object", key=key)
    _check_namespace(kind, metadata, key.namespace)
    if metadata.setdefault("name", key.name) != key.name:
        raise BadRequest(f"the name of the object ({metadata['name']}) is not the name it was sent to ({key.name})")
    version = metadata.get("resourceVersion")

    async def edit(_: Document) -> Document:
        return parse_object(proposed)

    return await change(core, request, edit, request.subresource, version=version)


async def patch(core: Core, request: Patch) -> Written:
    return await change(core, request, lambda now: patched(now, request, core.env.limits), request.subresource)


async def change(core: Core, request: Update | Patch, edit: Edit, subresource: str, *, version: Any = None) -> Written:
    """Replace the object by the result of `edit`. `version` is the one it must have, if the request names one."""
    key, options = request.key, request.options
    kind = core.kind_of(key)
    check_open_to_callers(kind)
    if subresource and (subresource not in kind.subresources or subresource not in _WRITABLE):
        raise MethodNotAllowed(f"{kind.kind} has no subresource {subresource!r} that can be updated", key=key)
    chain = core.admission.for_write("update", kind, subresource)
    untried = known_version(core, key, version, chain, options)  # once: the next attempt reads

    async def attempt(proof: Proof) -> Staged | Written:
        nonlocal untried
        if options.origin.operation:
            repeat = await operations.first_outcome(core, proof, "update", key, options, reads=(key,))
            if repeat is not None:
                return repeat
        assumed, untried = untried if key not in proof.reads else None, None
        if assumed is not None:
            proof.assume(assumed)
        old = proof.subject = await proof.object(key)
        if old is None:
            raise NotFound(f'{kind.resource} "{key.name}" not found', key=key)
        quick = patch_metadata(kind, old, request) if chain is None else None
        new, warnings = quick or await _next_version(core, proof, old, edit, chain, subresource, options)
        if new is None:
            if assumed is not None:  # no commit follows that could prove it
                del proof.reads[key]
                return await attempt(proof)
            return Staged(kind, key, old.value, created=old.created, warnings=warnings)
        new = await checked_write(core, proof, options, old, new)
        removed = ready_to_go(kind, new)
        await stage(core, proof, kind, key, old, None if removed else new)
        operations.record(core, proof, "update", key, options)
        return Staged(
            kind, key, new.value, created=old.created, warnings=warnings, removed=removed, view=new.known_view
        )

    return await core.prove(attempt, options)


async def _next_version(
    core: Core,
    proof: Proof,
    old: Object,
    edit: Edit,
    chain: AdmissionChain | None,
    subresource: str,
    options: WriteOptions,
) -> tuple[Object | None, tuple[str, ...]]:
    """The object as `edit` and `chain` leave it, and warnings; None instead of it if that changes nothing."""
    kind, key = old.kind, old.key
    before = old.edit()
    proposed = await edit(_with_resource_version(before, old))
    _check_preconditions(kind, old, proposed)
    after = _merge(core, kind, before, proposed, subresource)
    if subresource == "status" and key.kind in _RECOUNTED:
        await _recount(core, proof, old, proposed, after)
    filled = apply_defaults(kind, after)
    _count_generation(kind, before, after)
    if same_json(after, before):
        return None, ()
    if chain is None:
        new, warnings = _checked(kind, key, encode_object(after))
        was = old.edit() if filled else before  # defaults also fill parts that both share
        await check_changed(proof, old, new, subresource, was, after)
        return new, warnings
    new, warnings = await _admit(core, proof, chain, "update", kind, key, subresource, after, before, options)
    if same_content(old.value, new.value):  # policies reverted the caller's change
        return None, warnings
    await check_changed(proof, old, new, subresource, old.edit(), new.edit())  # not `before`: a policy was given it
    return new, warnings


async def _recount(core: Core, proof: Proof, old: Object, proposed: Document, after: Document) -> None:
    """Callers cannot write a quota's use. If they leave it out, it is recounted in this commit."""
    if _RECOUNTED[old.key.kind] in _mapping(proposed.get("status")):
        return
    if old.key.kind == RESOURCE_QUOTA_KIND:
        await recount(core, old, after)
    else:
        await recount_zones(core, proof, old, after)


def _check_preconditions(kind: Kind, old: Object, proposed: Document) -> None:
    metadata = proposed.get("metadata")
    if not isinstance(metadata, Mapping):
        raise BadRequest(f"{old.key} would be left without metadata: change single fields instead", key=old.key)
    given = metadata.get("resourceVersion")
    if given and given != str(old.revision):
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource} "{old.key.name}": the object has been modified;'
            " please apply your changes to the latest version and try again",
            key=old.key,
            revision=old.revision,
        )
    uid = metadata.get("uid")
    if uid and uid != old.uid:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.resource} "{old.key.name}": it is another object of that name now'
            f" (uid {old.uid}, not {uid})",
            key=old.key,
            revision=old.revision,
        )
    for field, value in (("name", old.key.name), ("namespace", old.key.namespace)):
        if metadata.get(field, value) != value:
            message = f"{kind.kind} {old.key.name} is invalid: metadata.{field}: field is immutable"
            raise Invalid(
                message,
                key=old.key,
                errors=[FieldError(f"metadata.{field}", "FieldValueInvalid", "field is immutable")],
            )


def _merge(core: Core, kind: Kind, before: Document, proposed: Document, subresource: str) -> Document:
    """The current object, with the parts of `proposed` that a write to `subresource` may change."""
    if subresource == "status":
        after = {**before}
        if "status" in proposed:
            after["status"] = keep_transition_times(before.get("status"), proposed["status"], core.timestamp())
        else:
            after.pop("status", None)
    elif subresource == "finalize":
        after = {**before, "spec": {**_mapping(before.get("spec")), "finalizers": _finalizers(proposed)}}
    elif subresource == "resize":
        after = resized(before, proposed)
    else:
        after = {**proposed, "apiVersion": kind.api_version, "kind": kind.kind}
        after["metadata"] = _merge_metadata(before["metadata"], _mapping(proposed.get("metadata")))
        if "status" in kind.subresources:
            after.pop("status", None)
            if "status" in before:
                after["status"] = before["status"]
        if kind.key_kind == NAMESPACE_KIND:
            after["spec"] = before.get("spec", {})
        elif kind.key_kind == POD_KIND:
            keep_priority(before, after)
    if kind.key_kind in _SERVICE_STATUS and ("status" in before or "status" in after):
        after["status"] = _keep_service_status(kind, before, after)
    return after


def _keep_service_status(kind: Kind, before: Document, after: Document) -> Document:
    """The status, with the fields that only the service writes unchanged."""
    kept = _mapping(before.get("status"))
    status = {**_mapping(after.get("status"))}
    for field in _SERVICE_STATUS[kind.key_kind]:
        status.pop(field, None)
        if field in kept:
            status[field] = kept[field]
    if kind.key_kind == ZONE_QUOTA_KIND and "zones" in status:
        # A zone without a limit is not counted. If its limit returns, it is recounted.
        limited = _mapping(_mapping(after.get("spec")).get("zones"))
        status["zones"] = {zone: use for zone, use in status["zones"].items() if zone in limited}
    if kind.key_kind == RESOURCE_QUOTA_KIND and _counted(before) != _counted(after):
        # Writes of resources that it does not limit do not update it, so an old count would be wrong.
        status.pop("used", None)
    return status


def _merge_metadata(before: Mapping[str, Any], proposed: Mapping[str, Any]) -> Document:
    metadata = {k: v for k, v in proposed.items() if k not in ("resourceVersion", "selfLink", "managedFields")}
    for field in (*_SERVER_METADATA, "name", "namespace", "generateName"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    # Keep the stored order of fields: a write without changes must produce the same bytes. No map becomes empty.
    kept = {field: value for field, value in metadata.items() if value or before.get(field) == value}
    return {field: kept[field] for field in (*before, *kept) if field in kept}


def _count_generation(kind: Kind, before: Document, after: Document) -> None:
    """Increment `generation` if anything but metadata and status changed."""
    if not kind.has_generation:
        return

    def desired(document: Document) -> Document:
        return {field: value for field, value in document.items() if field not in ("metadata", "status")}

    generation = before["metadata"].get("generation", 0)
    if not same_json(desired(before), desired(after)):
        generation += 1
    if generation != after["metadata"].get("generation", 0):
        after["metadata"] = {**after["metadata"], "generation": generation}


# -- shared ----------------------------------------------------------------------------------------


async def _admit(
    core: Core,
    proof: Proof,
    chain: AdmissionChain,
    verb: str,
    kind: Kind,
    key: Key,
    subresource: str,
    document: Document,
    old: Document | None,
    options: WriteOptions,
) -> tuple[Object, tuple[str, ...]]:
    request = AdmissionRequest(verb, kind, key, subresource, options.caller, document, old, options.dry_run)

    async def read(keys: Sequence[Key]) -> Inputs:
        return dict(zip(keys, await proof.objects(*keys), strict=True))

    if chain.mutates:
        document = await chain.mutate(
            request, read, proof.note, rounds_max=core.env.limits.admission_rounds_max, rounds=core.admission_rounds
        )
        _check_identity_kept(key, request.object, document)
        if old is not None:
            _count_generation(kind, old, document)  # a policy's change of the spec counts too
    checked = _checked(kind, key, encode_object(document))
    await chain.validate(request._replace(object=document), read, proof.note)
    return checked


def _check_identity_kept(key: Key, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for field in ("name", "namespace", "uid"):
        if before["metadata"].get(field) != _mapping(after.get("metadata")).get(field):
            raise Forbidden(f"an admission policy tried to change metadata.{field} of {key}", key=key)


def _checked(kind: Kind, key: Key, value: bytes) -> tuple[Object, tuple[str, ...]]:
    checked = check_object(kind, value)
    return Object(kind, key, value, revision=NO_REVISION, known_view=checked.view), checked.warnings


def _with_resource_version(document: Document, old: Object) -> Document:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(old.revision)}}


def _required(kind: Kind, path: str, why: str) -> Invalid:
    error = FieldError(path, "FieldValueRequired", f"Required value: {why}")
    return Invalid(f"{kind.kind} is invalid: {error}", errors=[error])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _finalizers(proposed: Document) -> list[Any]:
    found = _mapping(proposed.get("spec")).get("finalizers", [])
    return list(found) if isinstance(found, list) else []


def _counted(quota: Document) -> Any:
    """The resources and scopes that a quota counts."""
    spec = _mapping(quota.get("spec"))
    return set(_mapping(spec.get("hard"))), spec.get("scopes"), spec.get("scopeSelector")
