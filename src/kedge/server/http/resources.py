"""Resource paths: one HTTP request becomes one of `api.requests`, its reply becomes bytes.

The meaning of every verb is the service's. This module reads paths, parameters and bodies, and picks the reply's form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.api import http_headers
from kedge.api.codec import parse_object
from kedge.api.kinds import Kind, Registry
from kedge.api.requests import (
    Bind,
    Binding,
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
    Reserve,
    Update,
    WriteOptions,
    Written,
)
from kedge.api.types import type_table
from kedge.api.wellknown import NODE_ALLOCATION_KIND, RESERVATION_KIND
from kedge.env import Env
from kedge.errors import BadRequest, Compacted, MethodNotAllowed, NotFound
from kedge.keys import NO_REVISION, Key, Origin
from kedge.server.http import parameters, versions
from kedge.server.http.access import Attributes, Caller, check_allowed
from kedge.server.http.bodies import read_object, read_options, read_patch, unknown_fields
from kedge.server.http.connection import Exchange, HttpRequest
from kedge.server.http.negotiation import reply_form
from kedge.server.http.replies import Replier
from kedge.server.http.routes import ResourcePath
from kedge.server.http.streams import WatchWriter
from kedge.server.service import Service

_OWN_SUBRESOURCES = {RESERVATION_KIND: ("gang",), NODE_ALLOCATION_KIND: ("ended",)}
"""Requests of kedge alone, by the kind that they are about."""
_METHOD_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}


class Resources:
    """Serves the resources of one service."""

    def __init__(self, service: Service, env: Env, stopping: asyncio.Event) -> None:
        self._service = service
        self._env = env
        self._stopping = stopping
        self._types = type_table()

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    async def serve(self, path: ResourcePath, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Answer one request about a resource."""
        older = versions.is_older(path)
        if older:
            path = versions.stored_path(path, request.method)
        kind = self._kind(path)
        query = parameters.parse_query(request.query)
        verb = _verb(path, request.method, query)
        check_allowed(caller, Attributes(verb, path.group, path.resource, path.subresource, path.namespace, path.name))
        call = _Call(self, path, kind, query, request, exchange, caller)
        if older:
            await call.create_older()
            return
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

    def _kind(self, path: ResourcePath) -> Kind:
        kind = self.kinds.of_plural(path.group, path.version, path.resource)
        if path.namespace and not kind.namespaced:
            raise NotFound("the server could not find the requested resource")
        if path.subresource and path.subresource not in (*kind.subresources, *_OWN_SUBRESOURCES.get(kind.key_kind, ())):
            raise NotFound(f"{kind.resource} has no subresource {path.subresource!r}")
        return kind

    @property
    def service(self) -> Service:
        return self._service

    @property
    def env(self) -> Env:
        return self._env

    @property
    def stopping(self) -> asyncio.Event:
        return self._stopping

    def check_fields(self, kind: Kind, body: Mapping[str, Any], validation: str, *, patch: bool = False) -> list[str]:
        """Unknown fields: an error when validation is strict, warnings otherwise."""
        facts = self._types.of_kind(kind.api_version, kind.kind)
        if facts is None or validation == "Ignore":
            return []
        found = unknown_fields(body, facts, self._types, patch=patch)
        if found and validation == "Strict":
            raise BadRequest(f"strict decoding error: {', '.join(found)}")
        return found


def _verb(path: ResourcePath, method: str, query: parameters.Query) -> str:
    if path.name:
        found = _METHOD_VERBS.get(method)
    else:
        found = _COLLECTION_VERBS.get(method)
        if found == "list" and parameters.flag(query, "watch"):
            found = "watch"
    if found is None:
        raise MethodNotAllowed(f"{method} is not allowed on {'an object' if path.name else 'a collection'}")
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
    ) -> None:
        self._resources = resources
        self._path = path
        self._kind = kind
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
        if self._path.subresource not in ("", "status"):
            raise MethodNotAllowed(f"{self._path.resource}/{self._path.subresource} cannot be read")
        self._reply.found(await self._send(Get(self._key, options)), self._form)

    async def list_page(self) -> None:
        options = parameters.list_options(self._query, self._path.namespace, caller=self._caller.user)
        await self._reply.listed(await self._send(List(self._kind, options)), self._form)

    async def watch(self) -> None:
        options = parameters.watch_options(self._query, self._path.namespace, caller=self._caller.user)
        resources = self._resources
        include = self._query.get("includeObject", "Metadata")
        origins = http_headers.ORIGINS in self._request.headers
        writer = WatchWriter(resources.env, self._exchange, self._kind, self._form, include, origins=origins)
        try:
            stream = await resources.service.open_event_stream(OpenWatch(self._kind, options))
        except Compacted as error:
            if origins:
                raise
            writer.refuse(error)
            return
        await writer.run(stream, resources.stopping, bookmarks=options.allow_bookmarks)

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
            case other:
                raise MethodNotAllowed(f"nothing is created at {self._path.resource}/{other}")

    async def _create_object(self) -> None:
        if self._path.name:
            raise MethodNotAllowed("an object is created by POST to its collection, without its name in the path")
        body, warnings = self._object()
        written = await self._send(Create(self._kind, body, self._path.namespace, self._write_options()))
        self._reply.written(written, self._form, 201, warnings)

    async def create_older(self) -> None:
        """Create an object that is sent in an older version of its kind, and return it in that version."""
        body = versions.to_stored(read_options(self._request))
        written = await self._send(Create(self._kind, body, self._path.namespace, self._write_options()))
        self._reply.value(versions.from_stored(written.object.edit()), 201)

    async def _bind(self) -> None:
        body = read_options(self._request)
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
            chunk = msgspec.convert(_part(read_options(self._request), "chunk"), GangChunk)
        except msgspec.ValidationError as error:
            raise BadRequest(f"chunk is not a part of a gang: {error}") from error
        if (chunk.namespace, chunk.gang) != (self._path.namespace, self._path.name):
            raise BadRequest("the chunk names another gang than the path")
        self._done(await self._send(Reserve(chunk, self._write_options())))

    async def _confirm_ended(self) -> None:
        body = read_options(self._request)
        request = ConfirmEnded(
            self._path.name, str(body.get("nodeUID") or ""), str(body.get("podUID") or ""), self._write_options()
        )
        self._done(await self._send(request))

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
        body = read_options(self._request)
        options = self._delete_options(_part(body, "deleteOptions"))
        self._done(await self._send(Evict(self._key, options)))

    async def update(self) -> None:
        body, warnings = self._object()
        written = await self._send(Update(self._key, body, self._path.subresource, self._write_options()))
        await self._written(written, warnings)

    async def patch(self) -> None:
        body, patch_type = read_patch(self._request)
        validation = parameters.field_validation(self._query)
        warnings: list[str] = []
        if patch_type is not PatchType.JSON and isinstance(body, Mapping) and self._path.subresource != "scale":
            # Both kinds of merge patch have the shape of the object; a JSON patch has not.
            warnings = self._resources.check_fields(self._kind, body, validation, patch=True)
        written = await self._send(Patch(self._key, body, patch_type, self._path.subresource, self._write_options()))
        await self._written(written, warnings)

    async def _written(self, written: Written, warnings: Any) -> None:
        if self._path.subresource == "scale":
            self._reply.value(await self._send(GetScale(self._key)))
        else:
            self._reply.written(written, self._form, 200, warnings)

    async def delete(self) -> None:
        options = self._delete_options(read_options(self._request))
        self._reply.removed(await self._send(Delete(self._key, options)), self._form)

    async def delete_collection(self) -> None:
        selection: ListOptions = parameters.list_options(self._query, self._path.namespace, caller=self._caller.user)
        options = self._delete_options(read_options(self._request))
        deleted = await self._send(DeleteCollection(self._kind, selection, options))
        found = [each.object for each in deleted]
        revision = max((each.revision for each in found), default=NO_REVISION)
        await self._reply.listed(ObjectList(kind=self._kind, objects=found, revision=revision), self._form)

    # -- parts of a request ------------------------------------------------------------------------

    def _object(self) -> tuple[Any, list[str]]:
        """The body, and warnings about its fields."""
        validation = parameters.field_validation(self._query)
        body = read_object(self._request)
        if validation == "Ignore" or self._path.subresource == "scale":
            return body, []
        parsed = body if isinstance(body, Mapping) else parse_object(body)
        return parsed, self._resources.check_fields(self._kind, parsed, validation)

    def _write_options(self) -> WriteOptions:
        options = parameters.write_options(self._query, self._caller.user, self._origin())
        return parameters.with_kedge_headers(options, self._request.headers)

    def _delete_options(self, body: Mapping[str, Any]) -> DeleteOptions:
        options = parameters.delete_options(self._query, body, self._caller.user, self._origin())
        return parameters.with_kedge_headers(options, self._request.headers)

    def _origin(self) -> Origin:
        headers = self._request.headers
        operation = headers.get(http_headers.OPERATION, b"").decode("latin-1")
        return Origin(operation, headers.get(http_headers.DECISION, b"").decode("latin-1"))

    async def _send(self, request: Request[Any]) -> Any:
        return await self._resources.service.send(request)


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name) or {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} is an object")
    return value
