"""The whole API of one server: health, version, metrics, discovery, OpenAPI and resources, behind authentication."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from kedge.api.requests import List, ListOptions
from kedge.api.types import type_table
from kedge.env import Env
from kedge.errors import Forbidden, NotFound, OperatingError, TooManyRequests, Unauthorized, Unavailable
from kedge.server.http.access import MASTERS, OPEN_PATHS, Attributes, Authenticator, Caller, acting_caller, allows
from kedge.server.http.bodies import read_options
from kedge.server.http.connection import Exchange, Header, HttpRequest
from kedge.server.http.discovery import Discovery
from kedge.server.http.negotiation import wants_aggregated_discovery
from kedge.server.http.openapi import OpenApi
from kedge.server.http.parameters import parse_query
from kedge.server.http.resources import Resources
from kedge.server.http.routes import resource_path
from kedge.server.http.status import error_body, status_body
from kedge.server.service import Service

_encode = msgspec.json.Encoder().encode
_AGGREGATED_TYPE = b"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_OPENAPI_V2_TYPE = b"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_LOG = logging.getLogger(__name__)
KUBERNETES_MAJOR, KUBERNETES_MINOR = "1", "36"
"""The version of the Kubernetes API that is served: clients compare it with their own."""


class ApiHandler:
    """Answers every request of one server."""

    def __init__(self, service: Service, env: Env, authenticator: Authenticator) -> None:
        self._env = env
        self._service = service
        self._authenticator = authenticator
        self.stopping = asyncio.Event()
        self.ready = False
        """Whether `/readyz` answers 200."""
        self._resources = Resources(service, env, self.stopping)
        self._discovery = Discovery(service.kinds)
        self._openapi = OpenApi(service.kinds, type_table(), kedge_version())
        self._requests = env.metrics.counter("kedge_http_requests_total", "Requests answered", ("method", "code"))
        self._pages: dict[bytes, Callable[[HttpRequest, Exchange], None]] = {
            b"/version": self._version,
            b"/metrics": self._metrics,
            b"/api": self._core_discovery,
            b"/apis": self._group_discovery,
            b"/openapi/v3": lambda _, exchange: exchange.respond(200, self._openapi.index()),
            b"/openapi/v2": self._openapi_v2,
            b"/": self._root,
        }

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        try:
            if self.stopping.is_set():
                raise ServerStopping
            await self._answer(request, exchange)
        except ServerStopping:
            body = status_body(503, "ServiceUnavailable", "the server is stopping: try another, or again in a second")
            exchange.respond(503, body, headers=((b"Retry-After", b"1"),))
        except OperatingError as error:
            self._fail(error, exchange)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001  # a bug in one request must not end the server
            _LOG.exception("request %s %s failed", request.method, request.path.decode("latin-1"))
            if exchange.started:
                return  # the connection is cut: half a reply must not look whole
            exchange.respond(500, status_body(500, "InternalError", "internal error: see the log of the server"))

    def _fail(self, error: OperatingError, exchange: Exchange) -> None:
        if exchange.started:
            return
        code, body = error_body(error, self._service.kinds)
        headers: list[Header] = []
        if isinstance(error, TooManyRequests):
            headers.append((b"Retry-After", b"%d" % max(1, round(error.retry_after_s))))
        elif isinstance(error, Unavailable):
            headers.append((b"Retry-After", b"1"))
        elif isinstance(error, Unauthorized):
            headers.append((b"WWW-Authenticate", b"Bearer"))
        exchange.respond(code, body, headers=headers)

    async def _answer(self, request: HttpRequest, exchange: Exchange) -> None:
        path = request.path
        if path in OPEN_PATHS or path.startswith((b"/readyz/", b"/livez/", b"/healthz/")):
            if path == b"/version":
                self._version(request, exchange)
            else:
                await self._health(request, exchange)
            return
        caller = acting_caller(self._authenticator.caller(request), request.headers)
        page = self._pages.get(path.rstrip(b"/") or b"/")
        if page is not None:
            page(request, exchange)
            return
        found = resource_path(path)
        if found is not None and found.resource in _REVIEWS and request.method == "POST":
            self._review(found.resource, request, exchange, caller)
        elif found is not None:
            await self._resources.serve(found, request, exchange, caller)
        elif not self._document(path, exchange):
            raise NotFound("the server could not find the requested resource")

    # -- health ------------------------------------------------------------------------------------

    async def _health(self, request: HttpRequest, exchange: Exchange) -> None:
        """`/livez`: the loop turns. `/readyz` and `/healthz`: requests are served, and the store answers."""
        checks: dict[str, str] = {"ping": ""}
        if not request.path.startswith(b"/livez"):
            checks["serving"] = "" if self.ready else "not started yet, or stopping"
            checks["store"] = await self._store_problem()
        failed = {name: why for name, why in checks.items() if why}
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in checks.items()]
        verdict = f"{request.path.decode('latin-1').strip('/')} check {'failed' if failed else 'passed'}"
        verbose = failed or "verbose" in parse_query(request.query)
        text = "\n".join([*lines, verdict, ""]) if verbose else "ok"
        exchange.respond(500 if failed else 200, text.encode(), content_type=b"text/plain; charset=utf-8")

    async def _store_problem(self) -> str:
        kind = next(iter(self._service.kinds))
        try:
            async with asyncio.timeout(2.0):
                await self._service.send(List(kind, ListOptions(limit=1)))
        except (OperatingError, TimeoutError) as error:
            return str(error) or "no answer in two seconds"
        return ""

    # -- documents ---------------------------------------------------------------------------------

    def _version(self, request: HttpRequest, exchange: Exchange) -> None:
        del request
        exchange.respond(
            200,
            _encode(
                {
                    "major": KUBERNETES_MAJOR,
                    "minor": KUBERNETES_MINOR,
                    "gitVersion": f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.0+kedge-{kedge_version()}",
                    # Every field is required in Kubernetes' schema, and clients with generated types check that.
                    "gitCommit": "",
                    "gitTreeState": "",
                    "buildDate": "1970-01-01T00:00:00Z",
                    "goVersion": f"python{platform.python_version()}",
                    "compiler": platform.python_implementation().lower(),
                    "platform": f"{platform.system().lower()}/{platform.machine()}",
                }
            ),
        )

    def _metrics(self, request: HttpRequest, exchange: Exchange) -> None:
        del request
        registry: CollectorRegistry = self._env.metrics.registry
        shown = generate_latest(registry)  # type: ignore[no-untyped-call]
        exchange.respond(200, shown, content_type=CONTENT_TYPE_LATEST.encode())

    def _root(self, request: HttpRequest, exchange: Exchange) -> None:
        del request
        places = [place.decode() for place in self._pages if place != b"/"]
        groups = [f"/apis/{group}/{version}" for group, version in self._discovery.group_versions() if group]
        exchange.respond(
            200, _encode({"paths": sorted([*places, "/api/v1", *groups, "/livez", "/readyz", "/healthz"])})
        )

    def _core_discovery(self, request: HttpRequest, exchange: Exchange) -> None:
        self._discover(request, exchange, self._discovery.core_versions, core=True)

    def _group_discovery(self, request: HttpRequest, exchange: Exchange) -> None:
        self._discover(request, exchange, self._discovery.groups, core=False)

    def _discover(
        self, request: HttpRequest, exchange: Exchange, plain: Callable[[], dict[str, Any]], *, core: bool
    ) -> None:
        if wants_aggregated_discovery(request.headers.get(b"accept", b"")):
            body = _encode(self._discovery.aggregated(core=core))
            exchange.respond(200, body, content_type=_AGGREGATED_TYPE)
        else:
            exchange.respond(200, _encode(plain()))

    def _openapi_v2(self, request: HttpRequest, exchange: Exchange) -> None:
        if b"application/com.github.proto-openapi.spec.v2" in request.headers.get(b"accept", b""):
            exchange.respond(200, self._openapi.v2_protobuf(), content_type=_OPENAPI_V2_TYPE)
        else:
            exchange.respond(200, self._openapi.v2())

    def _document(self, path: bytes, exchange: Exchange) -> bool:
        """Documents whose path has a group and a version. Returns whether there is one."""
        parts = path.decode("latin-1").strip("/").split("/")
        body: bytes | None = None
        match parts:
            case ["api", version_name]:
                body = _encoded(self._discovery.resources("", version_name))
            case ["apis", group]:
                body = _encoded(self._discovery.group(group))
            case ["apis", group, version_name]:
                body = _encoded(self._discovery.resources(group, version_name))
            case ["openapi", "v3", "api", version_name]:
                body = self._openapi.document("", version_name)
            case ["openapi", "v3", "apis", group, version_name]:
                body = self._openapi.document(group, version_name)
        if body is None:
            return False
        exchange.respond(200, body)
        return True

    # -- reviews -----------------------------------------------------------------------------------

    def _review(self, resource: str, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Kinds that are answered and never stored: the caller's identity, and what it may do."""
        body = dict(read_options(request))
        if resource == "selfsubjectreviews":
            body["status"] = {"userInfo": {"username": caller.user, "groups": list(caller.groups)}}
        elif resource == "selfsubjectaccessreviews":
            body["status"] = {"allowed": _may(caller, body.get("spec") or {})}
        else:
            body["status"] = _rules(caller)
        exchange.respond(201, _encode(body))


class ServerStopping(Exception):
    """The server is stopping and takes no new request."""


_REVIEWS = frozenset({"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"})


def _may(caller: Caller, spec: dict[str, Any]) -> bool:
    wanted = spec.get("resourceAttributes")
    if not wanted:
        return MASTERS in caller.groups
    return allows(
        caller,
        Attributes(
            wanted.get("verb", ""), wanted.get("group", ""), wanted.get("resource", ""), wanted.get("subresource", ""),
            wanted.get("namespace", ""), wanted.get("name", ""),
        ),
    )  # fmt: skip


def _rules(caller: Caller) -> dict[str, Any]:
    if MASTERS not in caller.groups:
        raise Forbidden("rules of fixed roles are not listed: use a SelfSubjectAccessReview")
    every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    return {
        "resourceRules": [every],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _encoded(document: dict[str, Any] | None) -> bytes | None:
    return None if document is None else _encode(document)


def kedge_version() -> str:
    try:
        return version("kedge")
    except PackageNotFoundError:
        return "unknown"
