"""Get and list, with Kubernetes' meaning of `resourceVersion`, `limit`, `continue` and selectors.

A continued list stays at the revision of its first page. Selectors are applied here, page by page and in slices, so
that a selective list over a large kind neither holds the event loop nor the whole kind in memory.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Get, List, ListOptions, ObjectList
from kedge.api.selectors import FieldSelector, LabelSelector, parse_field_selector, parse_label_selector
from kedge.api.wellknown import META_GROUP
from kedge.errors import BadRequest, Compacted, FieldError, Invalid, NotFound
from kedge.keys import NO_REVISION, Key, Revision
from kedge.server.service.core import Core
from kedge.server.service.slices import slices
from kedge.store import Entry, Listing

Matches = Callable[[Object], bool]
_REVISION_MAX = 2**63 - 1
"""The largest revision that every backend supports."""


class _Continue(msgspec.Struct, frozen=True):
    """Where the next page begins, and the revision of the whole list."""

    rv: Revision
    ns: str
    name: str


class StoredList(NamedTuple):
    """One page of a list as stored versions, for a transport that splices their bytes."""

    kind: Kind
    entries: list[Entry]
    revision: Revision
    continue_token: str
    remaining: int | None


async def get(core: Core, request: Get) -> Object:
    key = request.key
    floor = parse_resource_version(request.options.resource_version)
    reading = await core.store.get([key])
    if reading.revision < floor:
        reading = await core.store.get([key], at=floor)  # waits until the store has reached it
    (entry,) = reading.entries
    if entry is None:
        raise NotFound(f'{core.kind_of(key).resource} "{key.name}" not found', key=key)
    return core.object_of(entry)


async def list_objects(core: Core, request: List) -> ObjectList:
    """One page. A page whose revision is compacted fails with a token for the rest of the list as it is now."""
    kind, options = request.kind, request.options
    matches = compile_selectors(kind, options.label_selector, options.field_selector)
    if matches is not None:
        with _rest_of_list(kind, options):
            return await _list_selected(core, kind, options, matches, *await _start(core, kind, options))
    page = await list_stored(core, request)
    found: list[Object] = []
    async for entries in slices(core, page.entries):
        found += [core.object_of(entry, remember=False) for entry in entries]
    return ObjectList(
        kind=kind,
        objects=found,
        revision=page.revision,
        continue_token=page.continue_token,
        remaining=page.remaining,
    )


async def list_stored(core: Core, request: List) -> StoredList:
    """A list without selectors, as the store has it."""
    kind, options = request.kind, request.options
    at, start_after = await _start(core, kind, options)
    with _rest_of_list(kind, options):
        listing = await core.store.list(
            kind.key_kind, namespace=options.namespace, at=at, start_after=start_after, limit=options.limit
        )
    token = continue_after(listing.revision, listing.entries[-1].key) if listing.remaining else ""
    return StoredList(kind, listing.entries, listing.revision, token, listing.remaining or None)


@contextmanager
def _rest_of_list(kind: Kind, options: ListOptions) -> Iterator[None]:
    """Give the error of a compacted page a token for the rest of the list as it is now."""
    try:
        yield
    except Compacted as error:
        if options.continue_token:
            _, start_after = _parse_continue(kind, options)
            error.continue_token = continue_after(NO_REVISION, start_after)
        raise


async def _start(core: Core, kind: Kind, options: ListOptions) -> tuple[Revision, Key | None]:
    """The revision to list at, once the store has reached it, and the key after which the page begins."""
    at, start_after = _where(kind, options)
    if at > NO_REVISION and not (options.continue_token or _exact(options)):
        with suppress(Compacted):  # it is compacted, so the newest is not older
            await core.store.get([], at=at)  # not older than: wait for it, then serve the newest
        at = NO_REVISION
    return at, start_after


async def _list_selected(
    core: Core, kind: Kind, options: ListOptions, matches: Matches, at: Revision, start_after: Key | None
) -> ObjectList:
    """Scan in chunks at one revision until the page is full or the kind ends."""
    found: list[Object] = []
    while True:
        listing: Listing = await core.store.list(
            kind.key_kind,
            namespace=options.namespace,
            at=at,
            start_after=start_after,
            limit=core.env.limits.list_page_max,
        )
        at = listing.revision
        async for entries in slices(core, listing.entries):
            core.scanned.inc(len(entries))
            found += filter(matches, (core.object_of(entry, remember=False) for entry in entries))
            if options.limit and len(found) > options.limit:
                del found[options.limit :]
                return _page(kind, found, at, found[-1].key, None)
        if not listing.remaining:
            return _page(kind, found, at, None, None)
        start_after = listing.entries[-1].key


def compile_selectors(kind: Kind, label_text: str, field_text: str) -> Matches | None:
    """One predicate for both selectors; None if they select everything."""
    labels: LabelSelector | None = parse_label_selector(label_text) if label_text else None
    fields: FieldSelector | None = parse_field_selector(kind, field_text) if field_text else None
    if labels is None and fields is None:
        return None

    def matches(candidate: Object) -> bool:
        if labels is not None and not labels.matches(candidate.metadata.labels):
            return False
        return fields is None or fields.matches(candidate.value)

    return matches


def parse_resource_version(text: str) -> Revision:
    """The revision that a client names; 0 for "" and "0", which both mean any."""
    if not text:
        return NO_REVISION
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_REVISION_MAX)) and int(text) <= _REVISION_MAX):
        raise BadRequest(f"resourceVersion {text!r} is not a version of this server: leave it out to read the newest")
    return int(text)


def _where(kind: Kind, options: ListOptions) -> tuple[Revision, Key | None]:
    """The revision of the page, and the key after which it begins."""
    match = options.resource_version_match
    if match not in ("", "Exact", "NotOlderThan"):
        raise invalid_option("resourceVersionMatch", f"{match!r} is neither Exact nor NotOlderThan")
    if options.limit < 0:
        raise BadRequest(f"limit {options.limit} is less than 0")
    if options.continue_token:
        if match:
            raise invalid_option("resourceVersionMatch", "forbidden with continue: the token fixes the version")
        if options.resource_version not in ("", "0"):
            raise BadRequest("resourceVersion is forbidden with continue: the token fixes the version")
        return _parse_continue(kind, options)
    if match and not options.resource_version:
        raise invalid_option("resourceVersionMatch", "forbidden unless resourceVersion is given")
    if match == "Exact" and options.resource_version == "0":
        raise invalid_option("resourceVersionMatch", 'forbidden as "Exact" for resourceVersion "0"')
    return parse_resource_version(options.resource_version), None


def invalid_option(name: str, why: str) -> Invalid:
    """The error for options of a list or watch that exclude each other, as Kubernetes reports it."""
    error = FieldError(name, "FieldValueForbidden", f"Forbidden: {why}")
    return Invalid(f'ListOptions.{META_GROUP} "" is invalid: {error}', errors=[error])


def _exact(options: ListOptions) -> bool:
    """Whether the list must be exactly at the given version. With a limit, that is the legacy default."""
    if options.resource_version_match:
        return options.resource_version_match == "Exact"
    return bool(options.limit)


def _page(kind: Kind, found: list[Object], revision: Revision, last: Key | None, remaining: int | None) -> ObjectList:
    token = "" if last is None else continue_after(revision, last)
    return ObjectList(kind=kind, objects=found, revision=revision, continue_token=token, remaining=remaining)


def continue_after(revision: Revision, last: Key) -> str:
    """The token of the page that begins after `last`."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Continue(revision, last.namespace, last.name))).decode()


def _parse_continue(kind: Kind, options: ListOptions) -> tuple[Revision, Key]:
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(options.continue_token), type=_Continue)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise BadRequest("continue is not a token of this server: begin the list again without it") from error
    if not NO_REVISION <= token.rv <= _REVISION_MAX or (options.namespace and token.ns != options.namespace):
        raise BadRequest("continue belongs to another list: begin this one again without it")
    return token.rv, Key(kind.key_kind, token.ns, token.name)
