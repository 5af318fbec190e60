"""Resource paths: one HTTP request becomes one of `api.requests`, its reply becomes bytes.

The meaning of every verb is the service's. This module reads paths, parameters and bodies, and picks the reply's form.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from kedge.api import http_headers
from kedge.api.access import Caller
from kedge.api.audit import AuditFacts, audit_facts
from kedge.api.codec import decode_json, parse_object
from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.requests import (
    Bind,
    Binding,
    BoundObject,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    DeleteOptions,
    Evict,
    GangChunk,
    Get,
    GetOptions,
    GetScale,
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Patch,
    PatchType,
    Request,
    RequestToken,
    Reserve,
    Update,
    WriteOptions,
    Written,
)
from kedge.api.timestamps import format_time
from kedge.api.types import type_table
from kedge.api.wellknown import AUTHENTICATION_GROUP, NODE_ALLOCATION_KIND, RESERVATION_KIND
from kedge.env import Env
from kedge.errors import (
    BadRequest,
    Compacted,
    Conflict,
    MethodNotAllowed,
    NotFound,
    OperatingError,
    TooManyRequests,
)
from kedge.keys import NO_REVISION, Key, Origin
from kedge.logs import DEBUG, INFO
from kedge.server.http import parameters, versions
from kedge.server.http.bodies import duplicate_fields, patch_type_of, read_object, read_options, unknown_fields
from kedge.server.http.create_warnings import create_warnings, has_warnings
from kedge.server.http.discovery import verbs_of
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.fast.plain_bodies import plain_body
from kedge.server.http.fast.plain_gets import PlainGet, remembered_plain_gets
from kedge.server.http.flow import WatchCounts
from kedge.server.http.list_blocks import ListBlocks
from kedge.server.http.negotiation import ReplyForm, reply_form
from kedge.server.http.replies import GZIP_BYTES_MIN, Replier
from kedge.server.http.routes import ResourcePath, attributes_of, verb_of
from kedge.server.http.streams import WatchFeed, WatchWriter
from kedge.server.http.versions import ServedVersion
from kedge.server.service import Service
from kedge.server.service.account_tokens import ISSUER
from kedge.server.service.fast.metadata_patch import is_metadata_patch
from kedge.server.service.patches import own_step, patched

OWN_SUBRESOURCES = {RESERVATION_KIND: ("gang",), NODE_ALLOCATION_KIND: ("ended",)}
"""Requests of kedge alone, by the kind that they are about."""
TOKEN_S = 3600
"""The time of a token whose request names none, as in Kubernetes."""


class Resources:
    """Serves the resources of one service."""

    def __init__(self, service: Service, env: Env) -> None:
        self.service = service
        self.env = env
        self.watches = WatchFeed(env)
        self.blocks = ListBlocks(env.limits, env.metrics)
        self.watch_counts = WatchCounts(env)
        self._types = type_table()
        self.plain_get = remembered_plain_gets(self.kind_of)

    @property
    def kinds(self) -> Registry:
        return self.service.kinds

    def serve_nowait(self, wanted: PlainGet, request: HttpRequest, exchange: Exchange, caller: Caller) -> bool:
        """Answer a get of one object if the store has it in memory. Otherwise nothing is done: call `serve`."""
        if self.env.log.enabled(DEBUG):
            return False  # `serve` logs it
        query = parameters.parse_query(request.query) if request.query else None
        if not self.service.access.check_nowait(caller, wanted.attributes):
            return False
        headers = request.headers
        form = reply_form(headers.get(b"accept", b""))
        if query and query.get("resourceVersion", "0") not in ("", "0"):
            return False
        found = self.service.get_nowait(wanted.key)
        if found is None:
            return False
        if exchange.audit is not None:
            exchange.audit.sent(Get(wanted.key, GetOptions(caller=caller.user)), found)
        body = found.json()
        own = http_headers.ORIGINS in headers or http_headers.OPERATION in headers
        if query or own or form is not ReplyForm.OBJECT or len(body) >= GZIP_BYTES_MIN:
            Replier(self.env, request, exchange, query or {}).found(found, form)
        else:
            exchange.respond(200, body)
        return True

    async def serve(self, path: ResourcePath, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Answer one request about a resource."""
        version = versions.served_version(path)
        kind = self._kind(path, version)
        query = parameters.parse_query(request.query)
        verb = verb_of(path, request.method, watches=bool(parameters.flag(query, "watch")))
        if verb == "deletecollection" and verb not in verbs_of(kind):
            raise MethodNotAllowed(f"{kind.resource} are deleted one at a time")
        wanted = attributes_of(path, verb, query.get("fieldSelector", ""))
        if not self.service.access.check_nowait(caller, wanted):
            await self.service.access.check(caller, wanted)
        if version is not None:
            if version.create_only and verb != "create":
                raise MethodNotAllowed(f"{version.kind.api_version} is served for create alone: use {kind.api_version}")
            query = version.stored_query(query)
        call = _Call(self, path, kind, query, request, exchange, caller, version)
        match verb:
            case "get":
                await call.get()
            case "list":
                await call.list_page()
            case "watch":
                await call.watch()
            case "create":
                await call.create()
            case "update":
                await call.update()
            case "patch":
                await call.patch()
            case "delete":
                await call.delete()
            case _:
                await call.delete_collection()

    def kind_of(self, path: ResourcePath) -> Kind:
        """The stored kind behind a path, in whichever version it is served. Raises `NotFound`."""
        return self._kind(path, versions.served_version(path))

    def _kind(self, path: ResourcePath, version: ServedVersion | None) -> Kind:
        """The stored kind behind a path."""
        kind = version.stored if version is not None else self.kinds.of_plural(path.group, path.version, path.resource)
        if path.namespace and not kind.namespaced:
            raise NotFound("the server could not find the requested resource")
        if path.subresource and path.subresource not in (*kind.subresources, *OWN_SUBRESOURCES.get(kind.key_kind, ())):
            raise NotFound(f"{kind.resource} has no subresource {path.subresource!r}")
        return kind

    def plain_body(self, kind: Kind, request: HttpRequest) -> tuple[str, ...] | None:
        """The warnings about a new object whose body need not be decoded; None if it must be."""
        facts = self._types.of_kind(kind.api_version, kind.kind)
        return None if facts is None else plain_body(request, kind, facts, self._types)

    def check_fields(
        self, kind: Kind, request: HttpRequest, body: Any, validation: str, *, patch: bool = False
    ) -> list[str]:
        """Unknown and duplicate fields: an error when validation is strict, warnings otherwise."""
        if validation == "Ignore":
            return []
        facts = self._types.of_kind(kind.api_version, kind.kind)
        found: list[str] = []
        if facts is not None and isinstance(body, dict | Mapping):  # a JSON patch does not have the object's shape
            found = unknown_fields(body, facts, self._types, patch=patch)
        found += duplicate_fields(request, body, self.env.limits)
        if found and validation == "Strict":
            raise BadRequest(f"strict decoding error: {', '.join(found)}")
        return found


class _Call:
    """One request on its way to the service and back."""

    def __init__(
        self,
        resources: Resources,
        path: ResourcePath,
        kind: Kind,
        query: parameters.Query,
        request: HttpRequest,
        exchange: Exchange,
        caller: Caller,
        version: ServedVersion | None,
    ) -> None:
        self._resources = resources
        self._path = path
        self._kind = kind
        self._version = version
        self._served_kind = kind if version is None else version.kind
        self._query = query
        self._request = request
        self._exchange = exchange
        self._caller = caller
        self._form = reply_form(request.headers.get(b"accept", b""))
        self._reply = Replier(resources.env, request, exchange, query)

    @property
    def _key(self) -> Key:
        if self._kind.namespaced and not self._path.namespace:
            raise NotFound(f"{self._kind.resource} are named inside a namespace: /namespaces/NAMESPACE/...")
        return Key(self._kind.key_kind, self._path.namespace, self._path.name)

    # -- reads -------------------------------------------------------------------------------------

    async def get(self) -> None:
        options = GetOptions(resource_version=self._query.get("resourceVersion", ""), caller=self._caller.user)
        if self._path.subresource == "scale":
            self._reply.value(await self._send(GetScale(self._key, options)))
            return
        if self._path.subresource not in ("", "approval", "status", "resize"):
            raise MethodNotAllowed(f"{self._path.resource}/{self._path.subresource} cannot be read")
        found = await self._send(Get(self._key, options))
        self._reply.found(found if self._version is None else self._version.object(found), self._form)

    async def list_page(self) -> None:
        options = parameters.list_options(self._query, self._path.namespace, caller=self._caller.user)
        request = List(self._kind, options)
        if self._form is ReplyForm.OBJECT and self._version is None and not options.selects:
            resources = self._resources
            await self._reply.stored(await self._send(request, resources.service.list_stored), resources.blocks)
            return
        found = await self._send(request)
        if self._version is None:
            await self._reply.listed(found, self._form)
        else:
            await self._reply.listed(self._version.listed(found), self._form, self._version.object)

    async def watch(self) -> None:
        options = parameters.watch_options(self._query, self._path.namespace, caller=self._caller.user)
        resources = self._resources
        include = self._query.get("includeObject", "Metadata")
        origins = http_headers.ORIGINS in self._request.headers
        convert = None if self._version is None else self._version.object
        writer = WatchWriter(
            resources.watches, self._exchange, self._served_kind, self._form, include, origins=origins, convert=convert
        )
        with resources.watch_counts.watching(self._caller.user):
            try:
                stream = await resources.service.open_event_stream(OpenWatch(self._kind, options))
            except Compacted as error:
                if origins:
                    raise
                writer.refuse(error)
                return
            self._exchange.leave_seat()
            await writer.run(stream, bookmarks=options.allow_bookmarks)

    # -- writes ------------------------------------------------------------------------------------

    async def create(self) -> None:
        match self._path.subresource:
            case "":
                await self._create_object()
            case "binding":
                await self._bind()
            case "eviction":
                await self._evict()
            case "gang":
                await self._reserve()
            case "ended":
                await self._confirm_ended()
            case "token":
                await self._request_token()
            case other:
                raise MethodNotAllowed(f"nothing is created at {self._path.resource}/{other}")

    async def _create_object(self) -> None:
        if self._path.name:
            raise MethodNotAllowed("an object is created by POST to its collection, without its name in the path")
        body, warnings, known = self._object(new=True)
        written = await self._send(Create(self._kind, body, self._path.namespace, self._write_options()))
        if not self._kedge_client and has_warnings(self._kind):
            if known is None:
                known = create_warnings(self._kind, body if isinstance(body, Mapping) else written.object.edit())
            warnings += known
        self._reply.written(self._as_served(written), self._form, 201, warnings)

    async def _bind(self) -> None:
        body = self._options_body()
        target, metadata = _part(body, "target"), _part(body, "metadata")
        node = target.get("name")
        if not isinstance(node, str) or not node:
            raise BadRequest("target.name, the node, is missing from the Binding")
        decided_on = _part(_part(body, http_headers.ORIGINS_MEMBER), "decidedOn")
        binding = Binding(
            pod=self._key,
            pod_uid=str(metadata.get("uid") or ""),
            node=node,
            node_uid=str(target.get("uid") or ""),
            decided_on={str(key): revision for key, revision in decided_on.items() if isinstance(revision, int)},
        )
        self._done(await self._send(Bind(binding, self._write_options())))

    async def _reserve(self) -> None:
        try:
            chunk = msgspec.convert(_part(self._options_body(), "chunk"), GangChunk)
        except msgspec.ValidationError as error:
            raise BadRequest(f"chunk is not a part of a gang: {error}") from error
        if (chunk.namespace, chunk.gang) != (self._path.namespace, self._path.name):
            raise BadRequest("the chunk names another gang than the path")
        self._done(await self._send(Reserve(chunk, self._write_options())))

    async def _confirm_ended(self) -> None:
        body = self._options_body()
        request = ConfirmEnded(
            self._path.name, str(body.get("nodeUID") or ""), str(body.get("podUID") or ""), self._write_options()
        )
        self._done(await self._send(request))

    async def _request_token(self) -> None:
        body = self._options_body()
        spec = _part(body, "spec")
        audiences, expires = spec.get("audiences") or (), spec.get("expirationSeconds")
        expires = TOKEN_S if expires is None else expires
        named = _part(spec, "boundObjectRef")
        if not isinstance(expires, int) or not all(isinstance(each, str) for each in audiences):
            raise BadRequest("spec.expirationSeconds is a number, and spec.audiences are texts")
        parts = {name: str(named.get(name) or "") for name in ("kind", "name", "uid")}
        bound = BoundObject(**parts) if named else None
        options = GetOptions(caller=self._caller.user, origin=self._origin())
        issued = await self._send(
            RequestToken(key=self._key, audiences=tuple(audiences), expiration_s=expires, bound=bound, options=options)
        )
        spec = {**spec, "audiences": list(audiences) or [ISSUER], "expirationSeconds": expires}
        status = {"token": issued.token, "expirationTimestamp": format_time(issued.expires)}
        metadata = {
            "name": self._path.name,
            "namespace": self._path.namespace,
            "creationTimestamp": format_time(self._resources.env.now()),
        }
        api_version = f"{AUTHENTICATION_GROUP}/v1"
        reply = {"kind": "TokenRequest", "apiVersion": api_version, "metadata": metadata, "spec": spec}
        self._reply.value({**reply, "status": status}, 201)

    def _done(self, written: Written) -> None:
        """The reply to a write whose Kubernetes reply is a bare `Status`: kedge's own clients get the object."""
        if self._kedge_client:
            self._reply.written(written, self._form, 201)
        else:
            success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            self._reply.value(success, 201)

    @property
    def _kedge_client(self) -> bool:
        headers = self._request.headers
        return http_headers.OPERATION in headers or http_headers.ORIGINS in headers

    async def _evict(self) -> None:
        body = self._options_body()
        options = self._delete_options(_part(body, "deleteOptions"))
        self._done(await self._send(Evict(self._key, options)))

    async def update(self) -> None:
        body, warnings, _ = self._object()
        written = await self._send(Update(self._key, body, self._path.subresource, self._write_options()))
        await self._written(written, warnings)

    async def patch(self) -> None:
        patch_type, body = patch_type_of(self._request), self._request.body
        validation = parameters.field_validation(self._query)
        warnings: list[str] = []
        if patch_type is not PatchType.MERGE or not is_metadata_patch(body):
            decoded = decode_json(body)
            if self._path.subresource != "scale":
                warnings = self._resources.check_fields(
                    self._served_kind, self._request, decoded, validation, patch=True
                )
        await own_step(body)
        request = Patch(self._key, body, patch_type, self._path.subresource, self._write_options())
        if self._version is None:
            written = await self._send(request)
        else:
            written = await self._patch_served(request, self._version)
        await self._written(written, warnings)

    async def _patch_served(self, request: Patch, version: ServedVersion) -> Written:
        """Apply a patch to the object as this version shows it. A lost race reads again, unless the patch names a
        version of the object."""
        for _ in range(self._resources.env.limits.proof_attempts_max):
            found: Object = await self._send(Get(request.key))
            shown = decode_json(version.object(found).json())
            body = version.stored_body(await patched(shown, request, self._resources.env.limits))
            try:
                written: Written = await self._send(Update(request.key, body, "", request.options))
                return written
            except Conflict:
                if body["metadata"].get("resourceVersion") != shown["metadata"]["resourceVersion"]:
                    raise
        raise TooManyRequests(f"{request.key} changed in every attempt to patch it: try again", key=request.key)

    async def _written(self, written: Written, warnings: Any) -> None:
        if self._path.subresource == "scale" and not self._kedge_client:
            self._reply.value(await self._send(GetScale(self._key)))
        else:
            self._reply.written(self._as_served(written), self._form, 200, warnings)

    async def delete(self) -> None:
        options = self._delete_options(self._options_body())
        self._reply.removed(self._as_served(await self._send(Delete(self._key, options))), self._form)

    async def delete_collection(self) -> None:
        selection: ListOptions = parameters.list_options(self._query, self._path.namespace, caller=self._caller.user)
        options = self._delete_options(self._options_body())
        deleted = await self._send(DeleteCollection(self._kind, selection, options))
        found = [each.object for each in deleted]
        revision = max((each.revision for each in found), default=NO_REVISION)
        page = ObjectList(kind=self._served_kind, objects=found, revision=revision)
        await self._reply.deleted(page, deleted, self._form, self._version.object if self._version else None)

    # -- parts of a request ------------------------------------------------------------------------

    def _object(self, *, new: bool = False) -> tuple[Any, list[str], tuple[str, ...] | None]:
        """The body in the stored version, warnings about its fields, and those about a new object if they are known."""
        validation = parameters.field_validation(self._query)
        body = read_object(self._request, self._resources.env.limits)
        warnings: list[str] = []
        if validation != "Ignore" and self._path.subresource != "scale":
            known = self._resources.plain_body(self._kind, self._request) if self._version is None else None
            if known is not None:
                return body, warnings, known
            body = body if isinstance(body, Mapping) else parse_object(body)
            warnings = self._resources.check_fields(self._served_kind, self._request, body, validation)
        if self._version is not None:
            if new:
                self._version.check_new(parse_object(body))
            body = self._version.stored_body(body)
        return body, warnings, None

    def _options_body(self) -> Mapping[str, Any]:
        return read_options(self._request, self._resources.env.limits)

    def _as_served(self, written: Written) -> Written:
        return written if self._version is None else self._version.written(written)

    def _write_options(self) -> WriteOptions:
        options = parameters.write_options(self._query, self._caller.user, self._origin())
        return parameters.with_kedge_headers(options, self._request.headers)

    def _delete_options(self, body: Mapping[str, Any]) -> DeleteOptions:
        options = parameters.delete_options(self._query, body, self._caller.user, self._origin())
        return parameters.with_kedge_headers(options, self._request.headers)

    def _origin(self) -> Origin:
        headers = self._request.headers
        operation = headers.get(http_headers.OPERATION, b"").decode("latin-1")
        decision = headers.get(http_headers.DECISION, b"").decode("latin-1")
        return Origin(operation, decision, self._caller.user, self._caller.recorded_groups)

    async def _send(self, request: Request[Any], send: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
        """Pass a request to the service, and log it: the one place that has each request and its reply."""
        env, level = self._resources.env, DEBUG if request.reads else INFO
        send = send or self._resources.service.send
        if self._exchange.audit is not None:
            send = self._exchange.audit.through(send)
        if not env.log.enabled(level):
            return await send(request)
        began_s = env.monotonic()
        try:
            reply = await send(request)
        except OperatingError as error:
            self._log(level, audit_facts(request, None, error), began_s)
            raise
        self._log(level, audit_facts(request, reply), began_s)
        return reply

    def _log(self, level: int, facts: AuditFacts, began_s: float) -> None:
        env = self._resources.env
        env.log.write(level, "request", {**facts.fields(), "took_s": round(env.monotonic() - began_s, 6)})


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name) or {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} is an object")
    return value
