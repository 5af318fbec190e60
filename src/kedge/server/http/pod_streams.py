"""`pods/log`, `pods/exec` and `pods/attach`: checked here, served by the agent of the pod's node.

The server joins two connections byte by byte. Each side has a bounded buffer, so a side that does not read makes the
other one wait. The WebSocket is between client and agent: nothing here knows its frames.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlencode

from kedge.api.access import Caller
from kedge.api.requests import Get, GetOptions
from kedge.api.views import PodView
from kedge.api.wellknown import EXEC_PROTOCOLS, POD_KIND
from kedge.env import Env
from kedge.errors import BadRequest, MethodNotAllowed, TooManyRequests
from kedge.keys import Key
from kedge.server.http import parameters
from kedge.server.http.agents import AgentDialer
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.routes import ResourcePath, attributes_of
from kedge.server.service import Service
from kedge.tasks import gather_ended

SUBRESOURCES = frozenset({"log", "exec", "attach", "portforward"})
_LOG_FLAGS = ("follow", "previous", "timestamps")
_LOG_NUMBERS = {"tailLines": 0, "sinceSeconds": 1, "limitBytes": 1}
"""Numbers of a log request, with the smallest value of each."""
_STREAM_FLAGS = ("stdin", "stdout", "stderr", "tty")
_READ_BYTES = 64 * 1024


def is_stream(path: ResourcePath) -> bool:
    """Whether a path names a stream of a pod."""
    return path.resource == "pods" and path.group == "" and path.subresource in SUBRESOURCES


class PodStreams:
    """Serves the streams of the pods of one cluster."""

    def __init__(self, service: Service, env: Env, agents: AgentDialer) -> None:
        self._service = service
        self._env = env
        self._stopping = asyncio.Event()
        self._agents = agents
        self._open = 0
        metrics = env.metrics
        metrics.gauge("kedge_http_streams", "Streams that are passed on to agents").set_function(lambda: self._open)
        self._failures = metrics.counter(
            "kedge_http_stream_failures_total", "Streams whose agent could not be reached", ()
        )

    def stop(self) -> None:
        """End the logs that are followed: the server stops. Commands may finish until it cuts their connections."""
        self._stopping.set()

    async def serve(self, path: ResourcePath, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Answer one request about a stream."""
        is_log = path.subresource == "log"
        verb = "get" if is_log else "create"
        await self._service.access.check(caller, attributes_of(path, verb))
        if request.method != "GET" and (is_log or request.method != "POST"):
            raise MethodNotAllowed(f"{request.method} is not allowed on pods/{path.subresource}")
        key = Key(POD_KIND, path.namespace, path.name)
        pod = (await self._service.send(Get(key, GetOptions(caller=caller.user)))).as_view(PodView)
        if path.subresource == "portforward":
            raise _no_port_forward(pod)
        query = parameters.parse_query(request.query)
        container = _container(pod, query.get("container", ""))
        if is_log:
            wanted = _log_query(query, pod)
            _check_started(pod, container, previous=bool(parameters.flag(query, "previous")))
        else:
            wanted = _stream_query(request.query, query, path.subresource)
            _check_runs(pod, path.subresource)
        if not pod.spec.node_name:
            raise BadRequest(f'pod "{pod.name}" is not scheduled yet: it has no node to ask')
        target = f"/pods/{quote(pod.uid, safe='')}/{quote(container, safe='')}/{path.subresource}?{urlencode(wanted)}"
        await self._pass_on(pod.spec.node_name, target, request, exchange, is_log=is_log)

    async def _pass_on(self, node: str, target: str, request: HttpRequest, exchange: Exchange, *, is_log: bool) -> None:
        if self._open >= self._env.limits.http_streams_max:
            raise TooManyRequests(
                f"this server has {self._open} open streams of logs and exec: end one, or use another server",
                retry_after_s=1.0,
            )
        self._open += 1
        try:
            try:
                agent_reader, agent_writer = await self._agents.connect(node)
            except BaseException:
                self._failures.inc()
                raise
            try:
                if not is_log:
                    # After the agent is reached: kubectl tries again without a WebSocket, and shows the last error.
                    _check_websocket(request)
                agent_writer.write(_head(target, request, is_log=is_log))
                client_reader, client_writer = exchange.take_over()
                await self._join(agent_reader, agent_writer, client_reader, client_writer, ends_at_stop=is_log)
            finally:
                agent_writer.transport.abort()
        finally:
            self._open -= 1

    async def _join(
        self,
        agent_reader: asyncio.StreamReader,
        agent_writer: asyncio.StreamWriter,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        *,
        ends_at_stop: bool,
    ) -> None:
        """Copy both ways until one side ends. Bytes of the agent are delivered before its end is."""
        to_client = asyncio.ensure_future(_copy(agent_reader, client_writer))
        ends = [to_client, asyncio.ensure_future(_copy(client_reader, agent_writer))]
        if ends_at_stop:
            ends.append(asyncio.ensure_future(self._stopping.wait()))
        whole = False
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            whole = to_client.done() and to_client.exception() is None
        finally:
            for each in ends:
                each.cancel()
            await gather_ended(*ends)
            if whole:
                client_writer.close()
            else:
                client_writer.transport.abort()  # the client must see that the stream is cut


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    return True


def _head(target: str, request: HttpRequest, *, is_log: bool) -> bytes:
    """The request to the agent: nothing of the client's but its WebSocket handshake."""
    lines = [f"GET {target} HTTP/1.1".encode(), b"Host: agent"]
    if not is_log:
        lines += [b"Connection: Upgrade", b"Upgrade: websocket"]
        names = (b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-protocol")
        lines += [b"%b: %b" % (name, request.headers[name]) for name in names if name in request.headers]
    return b"\r\n".join([*lines, b"", b""])


# -- checks ------------------------------------------------------------------------------------------


def _container(pod: PodView, wanted: str) -> str:
    """The container that a request means: the one it names, or the only one."""
    names = [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]
    if wanted:
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {pod.name}: it has {', '.join(names)}")
        return wanted
    if len(pod.spec.containers) > 1:
        raise BadRequest(f"a container name must be specified for pod {pod.name}, choose one of: [{' '.join(names)}]")
    return pod.spec.containers[0].name


def _check_started(pod: PodView, container: str, *, previous: bool) -> None:
    """A container that never started has no log; its status has the reason."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    found = next((each for each in statuses if each.name == container), None)
    waiting = found.state.waiting if found is not None else None
    if found is not None and (waiting is None or found.restart_count or found.last_state.terminated is not None):
        return
    why = waiting.reason if waiting is not None else "ContainerCreating"
    earlier = "previous terminated " if previous else ""
    raise BadRequest(f'{earlier}container "{container}" in pod "{pod.name}" is waiting to start: {why}')


def _check_runs(pod: PodView, subresource: str) -> None:
    if pod.finished:
        raise BadRequest(
            f"cannot {subresource} into a container in a completed pod; current phase is {pod.status.phase}"
        )


def _log_query(query: parameters.Query, pod: PodView) -> list[tuple[str, str]]:
    wanted = [("pod", pod.name)]
    wanted += [(name, "true") for name in _LOG_FLAGS if parameters.flag(query, name)]
    for name, least in _LOG_NUMBERS.items():
        if text := query.get(name, ""):
            if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 18 or int(text) < least:
                raise BadRequest(f"{name} is a number of at least {least}, not {text!r}")
            wanted.append((name, text))
    if moment := query.get("sinceTime", ""):
        if query.get("sinceSeconds"):
            raise BadRequest("at most one of sinceTime or sinceSeconds may be specified")
        try:
            parsed = datetime.fromisoformat(moment)
        except ValueError as error:
            raise BadRequest(f"sinceTime is a time of RFC 3339, not {moment!r}") from error
        if parsed.tzinfo is None:
            raise BadRequest(f"sinceTime needs a time zone, such as Z: {moment!r}")
        wanted.append(("sinceTime", parsed.isoformat()))
    return wanted


def _stream_query(text: bytes, query: parameters.Query, subresource: str) -> list[tuple[str, str]]:
    flags = [name for name in _STREAM_FLAGS if parameters.flag(query, name)]
    wanted = [(name, "true") for name in flags]
    if subresource == "exec":
        command = [value for name, value in parse_qsl(text.decode("ascii")) if name == "command"]
        if not command:
            raise BadRequest("you must specify at least one command for the container")
        wanted += [("command", each) for each in command]
    elif "stdin" in flags or "tty" in flags:
        raise BadRequest(
            "a container's standard input is closed and it has no terminal, so attach only shows output: "
            "leave out -i and -t, or use exec"
        )
    if not set(flags) - {"tty"}:
        raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
    return wanted


def _check_websocket(request: HttpRequest) -> None:
    offered = request.headers.get(b"sec-websocket-protocol", b"").decode("latin-1")
    is_websocket = request.headers.get(b"upgrade", b"").lower() == b"websocket" and request.method == "GET"
    if not is_websocket or not any(each.strip() in EXEC_PROTOCOLS for each in offered.split(",")):
        raise BadRequest(
            f"exec and attach need a WebSocket with one of {', '.join(EXEC_PROTOCOLS)}: use kubectl 1.31 or newer, "
            "without KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"
        )


def _no_port_forward(pod: PodView) -> BadRequest:
    address = f"at {pod.status.pod_ip} on node {pod.spec.node_name}" if pod.status.pod_ip else "on its node"
    return BadRequest(
        f"port-forward is not supported: pod {pod.name} listens {address}, a loopback address that programs on that "
        "machine can use directly"
    )
