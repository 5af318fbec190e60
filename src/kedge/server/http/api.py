"""The whole API of one server: health, version, metrics, discovery, OpenAPI and resources, behind authentication."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from kedge.api import http_headers
from kedge.api.access import Caller
from kedge.api.http_batch import BATCH_PATH
from kedge.api.types import type_table
from kedge.api.wellknown import METRICS_GROUP, ROTATE_KEYS_PATH
from kedge.caches import show_caches
from kedge.env import Env
from kedge.errors import NotFound, OperatingError, TooManyRequests, Unauthorized, Unavailable, check
from kedge.logs import DECISION
from kedge.server.audit import Auditor
from kedge.server.http.access import OPEN_PATHS, Authenticator, acting_caller
from kedge.server.http.agents import AgentDialer
from kedge.server.http.backups import BACKUP_PATH, serve_backup
from kedge.server.http.batches import serve_batch
from kedge.server.http.discovery import Discovery
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.fast.plain_gets import PlainGet
from kedge.server.http.flow import GET_UNITS, TOKEN_UNITS, FlowControl
from kedge.server.http.health import HealthChecks
from kedge.server.http.incidents import INCIDENTS_PREFIX, serve_incidents
from kedge.server.http.negotiation import wants_aggregated_discovery
from kedge.server.http.openapi import OpenApi
from kedge.server.http.origins import ORIGINS_PREFIX, serve_origin
from kedge.server.http.page_hook import LINK_PATH, PAGE_PREFIX, MountedPage, answer_link
from kedge.server.http.pod_streams import PodStreams, is_stream
from kedge.server.http.reply_head import Header
from kedge.server.http.request_audit import begin_audit
from kedge.server.http.resources import Resources
from kedge.server.http.reviews import Reviews, is_review
from kedge.server.http.routes import PATH_BYTES_REMEMBERED, ResourcePath, resource_path
from kedge.server.http.status import error_body, status_body
from kedge.server.http.usage_metrics import METRICS_KINDS, UsageMetrics
from kedge.server.http.versions import listed_versions
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service

_encode = msgspec.json.Encoder().encode
_AGGREGATED_TYPE = b"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_OPENAPI_V2_TYPE = b"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_BATCH_PATH = BATCH_PATH.encode()
_PATH_VERBS = {"HEAD": "get"}
"""Verbs of requests for paths that are no resources; of the others the method is the verb."""
AUTHORITY_PATH = b"/kedge/authority"
"""The certificate of the authority, for components that join: it is public, and they check its hash."""
DEBUG_PREFIX = b"/kedge/debug/"
"""Documents about the inside of the process: names of objects in every namespace, and texts of errors."""
_HEALTH = (b"/readyz/", b"/livez/", b"/healthz/")
_LOG = logging.getLogger(__name__)
KUBERNETES_MAJOR, KUBERNETES_MINOR = "1", "36"
"""The version of the Kubernetes API that is served: clients compare it with their own."""


class ApiHandler:
    """Answers every request of one server."""

    def __init__(
        self,
        service: Service,
        env: Env,
        authenticator: Authenticator,
        agents: AgentDialer,
        auditor: Auditor | None = None,
    ) -> None:
        self._env = env
        self._service = service
        self._authenticator = authenticator
        self._auditor = auditor
        self.ready = False
        """Whether `/readyz` answers 200."""
        self.authority_pem = ""
        """Certificate of the cluster's authority; empty on a server without one."""
        self.incidents: IncidentFolder | None = None
        """Where processes send their records of incidents; None on a server without a folder for them."""
        self.page: MountedPage | None = None
        """The page below `/ui/`; None on a server without one."""
        self.flow = FlowControl(env)
        self._health = HealthChecks(service, env)
        self._resources = Resources(service, env)
        self._reviews = Reviews(service, env)
        self._usage = UsageMetrics(service, env)
        served = (*service.kinds, *listed_versions(), *METRICS_KINDS)
        self.streams = PodStreams(service, env, agents)
        self._discovery = Discovery(served)
        self._openapi = OpenApi(served, type_table(), kedge_version())
        self._pages: dict[bytes, Callable[[HttpRequest, Exchange], None]] = {
            b"/version": self._version,
            b"/metrics": self._metrics,
            b"/api": self._core_discovery,
            b"/apis": self._group_discovery,
            b"/openapi/v3": lambda _, exchange: exchange.respond(200, self._openapi.index()),
            b"/openapi/v2": self._openapi_v2,
            b"/": self._root,
        }

    def add_page(self, path: str, read: Callable[[], Any]) -> None:
        """Serve a JSON document below `/kedge/debug/` to administrators. It is made for each request."""
        check(path.encode().startswith(DEBUG_PREFIX), f"{path}: only debug pages can be added")
        self._pages[path.encode()] = lambda _, exchange: exchange.respond(200, _encode(read()))

    def stop(self) -> None:
        """End the watches and the streams of pods, also those that are about to begin."""
        self.ready = False
        self._resources.watches.stop()
        self.streams.stop()

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        """Answer a request that needs no task: a get of one object that the store has in memory."""
        path = request.path
        if request.method != "GET" or request.late or len(path) > PATH_BYTES_REMEMBERED or not path.startswith(b"/api"):
            return False
        if self._auditor is not None:
            begin_audit(self._auditor, request, exchange, self._env)
        try:
            shown = self._authenticator.caller(request)
            if shown is None:
                return False
            caller = self._acting(shown, request, exchange)
            wanted = self._resources.plain_get(path)
            if wanted is None:
                return False
            if not self.flow.start_nowait():
                exchange.deferred = True
                answer = partial(self._answer_deferred, wanted, request, exchange, caller)
                self.flow.defer(
                    caller, wanted.path, exchange, answer, partial(self._refuse_deferred, exchange=exchange)
                )
                return True
            if not self._resources.serve_nowait(wanted, request, exchange, caller):
                return False
        except Exception as error:  # noqa: BLE001  # a bug in one request must not end the server
            self._fail_nowait(error, request, exchange)
        self._end_audit(exchange)
        return True

    def _answer_deferred(self, wanted: PlainGet, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """As `answer_nowait`, of a get that had to wait for its turn."""
        try:
            if not exchange.closed and not self._resources.serve_nowait(wanted, request, exchange, caller):
                exchange.connection.handle_in_task(request, exchange)
                return
        except Exception as error:  # noqa: BLE001  # a bug in one request must not end the server
            self._fail_nowait(error, request, exchange)
        self._end_audit(exchange)

    def _refuse_deferred(self, error: OperatingError, exchange: Exchange) -> None:
        self._fail(error, exchange)
        self._end_audit(exchange)

    def _fail_nowait(self, error: Exception, request: HttpRequest, exchange: Exchange) -> None:
        if isinstance(error, OperatingError):
            self._fail(error, exchange)
        else:
            self._fail_unexpectedly(request, exchange)

    def _end_audit(self, exchange: Exchange) -> None:
        if exchange.audit is not None:
            exchange.audit.finish()

    def _acting(self, shown: Caller, request: HttpRequest, exchange: Exchange) -> Caller:
        """The user that an authenticated caller acts as. A strict audit log may refuse the request."""
        if exchange.audit is None:
            return acting_caller(shown, request.headers, self._service.access)
        exchange.audit.authenticated(shown)
        caller = acting_caller(shown, request.headers, self._service.access)
        exchange.audit.acts_as(caller)
        return caller

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        # Always set: the task of a request that was pipelined begins in the context of the one before it.
        _log_below(request)
        if self._auditor is not None and exchange.audit is None:
            begin_audit(self._auditor, request, exchange, self._env)
        try:
            if request.late:
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
            self._fail_unexpectedly(request, exchange)
        finally:
            self._end_audit(exchange)

    def _fail_unexpectedly(self, request: HttpRequest, exchange: Exchange) -> None:
        _log_below(request)  # a request that needs no task runs in the context of another one
        _LOG.exception("request %s %s failed", request.method, request.path.decode("latin-1"))
        if not exchange.started:  # otherwise the connection is cut: half a reply must not look whole
            exchange.respond(500, status_body(500, "InternalError", "internal error: see the log of the server"))

    def _fail(self, error: OperatingError, exchange: Exchange) -> None:
        if exchange.audit is not None:
            exchange.audit.failed(error)
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
        if self._is_open(request):
            if await self._admitted(exchange, GET_UNITS):
                await self._answer_openly(path, request, exchange)
            return
        shown = request.caller or self._page_caller(request) or self._authenticator.caller(request)
        if shown is None:
            if not await self._admitted(exchange, TOKEN_UNITS):
                return
            shown = await self._authenticator.token_caller(request, self._service, self._env)
        caller = self._acting(shown, request, exchange)
        if path == BACKUP_PATH:
            await serve_backup(self._service, self._env, caller, exchange)
        elif path == _BATCH_PATH and request.method == "POST":
            await serve_batch(self, request, exchange, self._env.limits, shown)  # each call has a seat of its own
        elif path == ROTATE_KEYS_PATH.encode() and request.method == "POST":
            self._check_path(caller, request)
            exchange.respond(200, _encode(await self._service.rotate_keys(caller)))
        else:
            await self._answer_in_turn(request, exchange, caller)

    async def _admitted(self, exchange: Exchange, units: int) -> bool:
        """Wait until work for a caller that is not known may begin. Returns whether its client is still there."""
        await self.flow.admit(exchange.connection.address, units, exchange.begun_s)
        return not exchange.closed

    async def _answer_in_turn(self, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Answer when flow control lets the request begin."""
        found = resource_path(request.path)
        exchange.seat = await self.flow.enter(caller, found, request, exchange)
        if exchange.seat is None:
            return
        try:
            if found is None:
                await self._answer_path(request, exchange, caller)
            else:
                await self._answer_resource(found, request, exchange, caller)
        except BaseException:
            exchange.leave_seat()
            raise
        if exchange.seat is not None:
            exchange.seat.leave(exchange.streamed_bytes if exchange.ended else None)

    def _page_caller(self, request: HttpRequest) -> Caller | None:
        """The user of the page. A cookie counts for the page alone: no other path takes one."""
        return self.page.caller_of(request) if self.page is not None and self._is_page(request.path) else None

    def _is_page(self, path: bytes) -> bool:
        return self.page is not None and path.startswith(PAGE_PREFIX) and path != LINK_PATH.encode()

    async def _answer_path(self, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        path = request.path
        if self.page is not None and path.startswith(PAGE_PREFIX):
            if self._is_page(path):
                await self.page.answer(request, exchange)
            else:
                answer_link(self.page, request, exchange, caller)
            return
        if path.startswith(ORIGINS_PREFIX):
            await serve_origin(self._service, self._resources, request, exchange, caller)
            return
        self._check_path(caller, request)
        if path == INCIDENTS_PREFIX or path.startswith(INCIDENTS_PREFIX + b"/"):
            serve_incidents(self.incidents, request, exchange, self._env, caller)
            return
        page = self._pages.get(path.rstrip(b"/") or b"/")
        if page is not None:
            page(request, exchange)
        elif not self._document(path, exchange):
            raise NotFound("the server could not find the requested resource")

    async def _answer_resource(
        self, found: ResourcePath, request: HttpRequest, exchange: Exchange, caller: Caller
    ) -> None:
        if request.method == "POST" and is_review(found):
            exchange.respond(201, _encode(await self._reviews.answer(found, request, caller)))
        elif found.group == METRICS_GROUP:
            await self._usage.serve(found, request, exchange, caller)
        elif is_stream(found):
            exchange.leave_seat()
            await self.streams.serve(found, request, exchange, caller)
        else:
            await self._resources.serve(found, request, exchange, caller)

    def _is_open(self, request: HttpRequest) -> bool:
        """Whether the request needs no identity."""
        path = request.path
        if path in OPEN_PATHS or path.startswith(_HEALTH):
            return True
        if path == AUTHORITY_PATH:
            return bool(self.authority_pem)
        return self.page is not None and self._is_page(path) and self.page.caller_of(request) is None

    async def _answer_openly(self, path: bytes, request: HttpRequest, exchange: Exchange) -> None:
        if path == b"/version":
            self._version(request, exchange)
        elif path == AUTHORITY_PATH:
            exchange.respond(200, _encode({"authority": self.authority_pem}))
        elif self.page is not None and self._is_page(path):
            await self.page.answer(request, exchange)
        else:
            await self._health.serve(request, exchange, ready=self.ready)

    def _check_path(self, caller: Caller, request: HttpRequest) -> None:
        """Raise `Forbidden` if the caller may not request a path that is no resource."""
        verb = _PATH_VERBS.get(request.method, request.method.lower())
        self._service.access.check_path(caller, verb, request.path.decode("latin-1"))

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
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        show_caches(self._env.metrics)
        shown, content_type = self._env.metrics.page(accept)
        exchange.respond(200, shown, content_type=content_type.encode())

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


def _log_below(request: HttpRequest) -> None:
    """Log lines from here on are of the decision behind the request."""
    DECISION.set(request.headers.get(http_headers.DECISION, b"").decode("latin-1"))


class ServerStopping(Exception):
    """The server is stopping and takes no new request."""


def _encoded(document: dict[str, Any] | None) -> bytes | None:
    return None if document is None else _encode(document)


def kedge_version() -> str:
    try:
        return version("kedge")
    except PackageNotFoundError:
        return "unknown"
