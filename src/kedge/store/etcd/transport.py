"""Requests to a few etcd endpoints over gRPC, with distinct outcomes: answered, rejected, not sent, unknown.

`EtcdStore` decides what a request means; here it is only sent. A request that may have reached a server is repeated
only if the caller declares that to be harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple
from weakref import WeakSet

import grpc

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import BadRequest, Misconfigured, OperatingError, OutcomeUnknown, TooLarge, Unavailable
from kedge.store.etcd import messages as m
from kedge.store.etcd.access import EtcdLogin, EtcdTls, parse_endpoints
from kedge.tasks import gather_ended

_OPTIONS = [
    ("grpc.enable_retries", 0),  # a hidden retry would hide an unknown outcome
    ("grpc.max_receive_message_length", -1),  # otherwise a large response would look like a rejected request
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd disconnects clients that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
]
# A member without a leader fails the request at once, instead of at its timeout.
_REQUIRE_LEADER = ("hasleader", "true")
_READY, _FAILED = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE

# Errors of etcd from before a proposal, or instead of applying it: nothing was written. "Database space exceeded" is
# not among them: the write that first exceeds the limit gets that error, and is made.
COMPACTED = "etcdserver: mvcc: required revision has been compacted"
FUTURE = "etcdserver: mvcc: required revision is a future revision"
_NO_LEADER = "etcdserver: no leader"
_REFUSALS: dict[str, type[OperatingError]] = {
    _NO_LEADER: Unavailable,
    "etcdserver: request is too large": TooLarge,
    "etcdserver: too many operations in txn request": BadRequest,
    "etcdserver: duplicate key given in txn request": BadRequest,
    "etcdserver: too many requests": Unavailable,
}
# A token ends after a few minutes without use and when users change: with a new one the request may succeed.
_TOKEN_REJECTED = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
_NOT_PERMITTED = "etcdserver: permission denied"
_AUTH_FAILED = "etcdserver: authentication failed, invalid user ID or password"
_AUTH_OFF = "etcdserver: authentication is not enabled"
# The error of gRPC when there was no connection for the request.
_NOT_SENT = "failed to connect to all addresses"


_POLL_S = 0.01
_DRAIN_S = 0.02
_AHEAD_MAX = 8
_PROBE_S = 0.2
"""A paused member accepts connections: after a failure, members that do not answer a probe by then are used last."""


class NotSent(Exception):
    """The request reached no server."""


class Unanswered(Exception):
    """The request may or may not have been carried out."""


class TokenRejected(Exception):
    """The request was not carried out: it needs a valid token."""


class RevisionError(Exception):
    """etcd has no such revision any more (`COMPACTED`) or not yet (`FUTURE`)."""


@dataclass
class _EtcdMember:
    address: str
    channel: grpc.aio.Channel
    avoid_until_s: float = 0.0
    """Set by a failure, so that the next requests try other members first."""
    suspect: bool = False
    """It has failed, and has answered nothing since: it is used last."""


class Method(NamedTuple):
    """One remote procedure of etcd."""

    name: str
    path: str
    request: Any
    response: Any


RANGE = Method("range", "/etcdserverpb.KV/Range", m.RangeRequest, m.RangeResponse)
TXN = Method("txn", "/etcdserverpb.KV/Txn", m.TxnRequest, m.TxnResponse)
COMPACT = Method("compact", "/etcdserverpb.KV/Compact", m.CompactionRequest, m.CompactionResponse)
STATUS = Method("status", "/etcdserverpb.Maintenance/Status", m.StatusRequest, m.StatusResponse)
_AUTHENTICATE = Method("authenticate", "/etcdserverpb.Auth/Authenticate", m.AuthenticateRequest, m.AuthenticateResponse)
_WATCH = Method("watch", "/etcdserverpb.Watch/Watch", m.WatchRequest, m.WatchResponse)


_BACKOFF = Backoff(0.02, 0.5)


class EtcdTransport:
    """Channels to the members of one etcd cluster. Uses one member while it is healthy."""

    def __init__(
        self, endpoints: Sequence[str], env: Env, *, tls: EtcdTls | None = None, login: EtcdLogin | None = None
    ) -> None:
        addresses = parse_endpoints(endpoints, tls=tls is not None)
        if tls is not None:
            tls.check()
        _keep_grpc_alive()
        self._env = env
        self._login = login
        self._token: str | None = None
        """None: there is none yet. Empty: etcd has authentication switched off."""
        self._authenticating = asyncio.Lock()
        self._troubled = False
        """A member has failed since the last probe."""
        self._request_s = env.limits.store_request_s
        self._members = [_EtcdMember(address, _channel(address, tls)) for address in addresses]
        env.random.shuffle(self._members)  # several API servers spread over the members
        self._calls: dict[tuple[str, str], Any] = {}
        self._streams: WeakSet[WatchStream] = WeakSet()
        self._seconds = env.metrics.histogram(
            "kedge_store_request_seconds", "Requests to the store's server", ("request", "outcome")
        )

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self._members]

    async def send_once(self, method: Method, request: Any) -> Any:
        """Send to one connected member. For requests that must not be carried out twice.

        Raises:
            Unavailable, BadRequest, TooLarge, RevisionError: it was not carried out.
            OutcomeUnknown: it may have been.
        """
        deadline_s = self._env.monotonic() + self._request_s
        trouble: Exception | None = None
        await self._probe_after_failure()
        for member in self._by_preference():
            left_s = deadline_s - self._env.monotonic()
            if left_s <= 0:
                break
            try:
                return await self._attempt(member, method, request, left_s)
            except NotSent as error:
                trouble = error
            except Unanswered as error:
                raise OutcomeUnknown(f"etcd did not report the outcome of the request ({error}): read first") from error
        raise Unavailable(f"no etcd endpoint accepted the request, nothing was written: {trouble}") from trouble

    async def send_until_answered(self, method: Method, request: Any) -> Any:
        """Send to one member after another until one answers. For reads and other repeatable requests."""
        deadline_s = self._env.monotonic() + self._request_s
        trouble: Exception | None = None
        failures = 0
        while True:
            for member in self._by_preference():
                left_s = deadline_s - self._env.monotonic()
                if left_s <= 0:
                    raise Unavailable(f"etcd did not answer within {self._request_s} s ({trouble})") from trouble
                try:
                    share_s = left_s / 2 if len(self._members) > 1 else left_s
                    return await self._attempt(member, method, request, max(share_s, 0.05))
                except (NotSent, Unanswered) as error:
                    trouble = error
            failures += 1
            left_s = deadline_s - self._env.monotonic()
            await asyncio.sleep(max(0.0, min(left_s, _BACKOFF.pause_s(failures, self._env.random))))

    async def send_to(self, address: str, method: Method, request: Any) -> Any:
        """Send to one member in particular."""
        member = next(each for each in self._members if each.address == address)
        return await self._attempt(member, method, request, self._env.limits.store_connect_s)

    async def watch(self, request: Any) -> WatchStream:
        """Open a watch on a connected member."""
        trouble: Exception | None = None
        for member in self._by_preference():
            try:
                await self._connected(member, self._request_s)
                if self._token is None:
                    await self._authenticate(member, None, self._request_s)
            except NotSent as error:
                trouble = error
                continue
            call = self._call(member, _WATCH)(metadata=self._metadata)
            stream = WatchStream(call, partial(self._avoid, member), self._drop_token)
            self._streams.add(stream)  # until it is collected, so that `close` finds it
            await stream.begin(request)
            return stream
        raise NotSent(f"no etcd endpoint can be reached ({trouble})")

    async def close(self) -> None:
        """Close every channel, and wait for gRPC's last callbacks: on a closed loop they would stop other loops."""
        for stream in tuple(self._streams):
            stream.close()
        await asyncio.gather(*(stream.wait_closed() for stream in tuple(self._streams)))
        for member in self._members:
            await member.channel.close()
        self._calls.clear()
        await asyncio.sleep(_DRAIN_S)

    # -- private -----------------------------------------------------------------------------------

    def _by_preference(self) -> list[_EtcdMember]:
        now_s = self._env.monotonic()
        return sorted(self._members, key=lambda member: (member.suspect, max(0.0, member.avoid_until_s - now_s)))

    def _avoid(self, member: _EtcdMember) -> None:
        member.avoid_until_s = self._env.monotonic() + self._request_s
        member.suspect = self._troubled = True

    async def _probe_after_failure(self) -> None:
        """Find the members that answer, once after each failure.

        1. The leader is paused. 2. A commit that a healthy member passed on to it gets no answer. 3. That member is
        avoided, and the next commit must not go to the paused one.
        """
        if not self._troubled or len(self._members) == 1:
            return
        probes = (self._attempt_once(each, STATUS, m.StatusRequest(), _PROBE_S) for each in self._members)
        answers = await gather_ended(*probes)
        for member, answer in zip(self._members, answers, strict=True):
            member.suspect = isinstance(answer, BaseException)
        self._troubled = False

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (_REQUIRE_LEADER, ("token", self._token)) if self._token else (_REQUIRE_LEADER,)

    def _drop_token(self) -> None:
        self._token = None

    async def _authenticate(self, member: _EtcdMember, rejected: str | None, timeout_s: float) -> None:
        """Get a token, unless another task has got one since `rejected` was sent."""
        async with self._authenticating:
            if self._login is None or self._token != rejected:
                return
            request = m.AuthenticateRequest(name=self._login.user, password=self._login.password)
            try:
                response = await self._attempt_once(member, _AUTHENTICATE, request, timeout_s)
            except Misconfigured as error:
                if _AUTH_OFF not in str(error):
                    raise
                self._token = ""
            else:
                self._token = response.token

    async def _attempt(self, member: _EtcdMember, method: Method, request: Any, timeout_s: float) -> Any:
        """Send to one member, a second time only if the first was rejected for its token."""
        if self._token is None:
            await self._authenticate(member, None, timeout_s)
        token = self._token
        try:
            return await self._attempt_once(member, method, request, timeout_s)
        except TokenRejected as error:
            if self._login is None:
                raise Misconfigured(
                    f"etcd: credentials: {member.address} requires a user and password ({error}), nothing was written"
                ) from error
        await self._authenticate(member, token, timeout_s)
        try:
            return await self._attempt_once(member, method, request, timeout_s)
        except TokenRejected as error:
            raise NotSent(f"{member.address} rejects the token that it issued: {error}") from error

    async def _attempt_once(self, member: _EtcdMember, method: Method, request: Any, timeout_s: float) -> Any:
        began_s, outcome = self._env.monotonic(), "cancelled"
        try:
            await self._connected(member, timeout_s)
            left_s = timeout_s - (self._env.monotonic() - began_s)
            response = await self._call(member, method)(request, timeout=left_s, metadata=self._metadata)
            outcome = "ok"
        except grpc.aio.AioRpcError as error:
            mapped = outcome_of(error, member.address)
            outcome = type(mapped).__name__
            if isinstance(mapped, NotSent | Unanswered):
                self._avoid(member)
            raise mapped from error
        except grpc.aio.UsageError as error:
            outcome = "NotSent"
            raise NotSent("the store is closed") from error
        except NotSent:
            outcome = "NotSent"
            self._avoid(member)
            raise
        finally:
            self._seconds.labels(method.name, outcome).observe(self._env.monotonic() - began_s)
        return response

    async def _connected(self, member: _EtcdMember, timeout_s: float) -> None:
        """Connect before the request is sent: a failure here was certainly not sent."""
        channel = member.channel
        state = channel.get_state(try_to_connect=True)
        if state is _READY:
            return
        try:
            async with asyncio.timeout(min(timeout_s, self._env.limits.store_connect_s)):
                while state is not _READY:
                    if state is _FAILED and len(self._members) > 1:
                        break  # gRPC reconnects by itself; meanwhile another member may be healthy
                    await asyncio.sleep(_POLL_S)  # gRPC's own wait cannot be cancelled: it would outlive the event loop
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            pass
        if state is not _READY:
            raise NotSent(f"{member.address} cannot be reached")

    def _call(self, member: _EtcdMember, method: Method) -> Any:
        call = self._calls.get((member.address, method.path))
        if call is None:
            make = member.channel.stream_stream if method is _WATCH else member.channel.unary_unary
            call = self._calls[member.address, method.path] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return call


class WatchStream:
    """One etcd watch. A cancelled read loses nothing: the next read gets its response.

    A task reads a few responses ahead: on a busy event loop each read takes several iterations of the loop.
    """

    def __init__(self, call: Any, avoid: Callable[[], None], drop_token: Callable[[], None]) -> None:
        self._call = call
        self._avoid = avoid
        self._drop_token = drop_token
        self._ahead: asyncio.Queue[Any] = asyncio.Queue(_AHEAD_MAX)
        self._reader: asyncio.Task[None] | None = None

    async def begin(self, request: Any) -> None:
        try:
            await self._call.write(m.WatchRequest(create_request=request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._avoid()
            raise Unanswered(f"the watch could not begin: {error}") from error
        self._reader = asyncio.ensure_future(self._read_ahead())

    async def next(self, timeout_s: float) -> Any:
        """The next response, or None if none came in time."""
        if self._ahead.empty():
            try:
                async with asyncio.timeout(timeout_s):
                    response = await self._ahead.get()
            except TimeoutError:
                return None
        else:
            response = self._ahead.get_nowait()
        if isinstance(response, Unanswered):
            self._ahead.put_nowait(response)  # further reads see the end too
            raise response
        if response.canceled and any(each in response.cancel_reason for each in _TOKEN_REJECTED):
            self._drop_token()  # the next watch gets a new one
        return response

    async def _read_ahead(self) -> None:
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as error:
                self._avoid()
                response = Unanswered(f"the watch broke: {error.code().name} {error.details()}")
            except asyncio.CancelledError:
                response = Unanswered("the watch was closed")
            if response is grpc.aio.EOF:
                self._avoid()
                response = Unanswered("the watch was ended by etcd")
            if isinstance(response, Unanswered):
                if self._ahead.full():
                    self._ahead.get_nowait()  # the next watch gets it again, after the last response taken
                self._ahead.put_nowait(response)
                return
            await self._ahead.put(response)

    def give_up(self) -> None:
        """Close, and prefer other members: this one does not deliver."""
        self._avoid()
        self.close()

    def close(self) -> None:
        self._call.cancel()
        while not self._ahead.empty():  # so that the reading task does not wait for room
            self._ahead.get_nowait()

    async def wait_closed(self) -> None:
        if self._reader is not None:
            await asyncio.wait({self._reader})


def outcome_of(error: grpc.aio.AioRpcError, address: str) -> Exception:
    """The outcome of a failed request. An error that is not known to be harmless means an unknown outcome."""
    details = error.details() or ""
    if details in (COMPACTED, FUTURE):
        return RevisionError(details)
    if details == _NO_LEADER or details.startswith(_NOT_SENT):
        return NotSent(f"{address}: {details}")
    if details in _TOKEN_REJECTED:
        return TokenRejected(details)
    if details in (_AUTH_FAILED, _AUTH_OFF):
        return Misconfigured(f"etcd: credentials: {address} rejects the user or the password ({details})")
    if details == _NOT_PERMITTED:
        return Misconfigured(f"etcd: credentials: the user may not read and write the prefix ({address}: {details})")
    if details in _REFUSALS:
        return _REFUSALS[details](f"etcd rejected the request, nothing was written: {details}")
    return Unanswered(f"{address}: {error.code().name} {details}")


@cache
def _keep_grpc_alive() -> None:
    """Keep one channel open: gRPC stops its polling thread with the last, and a new one may then never be polled."""
    grpc.aio.init_grpc_aio()


def _channel(address: str, tls: EtcdTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
