"""The service: carries out every request of the API, with no transport around it.

Transports call `send` and `open_watch`, and nothing below. Only the service sees a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from kedge.api.access import Caller
from kedge.api.kinds import KINDS, Registry
from kedge.api.objects import Object
from kedge.api.request_text import check_request_text
from kedge.api.requests import (
    Bind,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    Evict,
    Get,
    GetScale,
    List,
    OpenWatch,
    Patch,
    Reply,
    Request,
    RequestToken,
    Reserve,
    Update,
    WatchEvent,
    Written,
)
from kedge.api.verbs import Verbs
from kedge.env import Env
from kedge.errors import BadRequest, MethodNotAllowed, OperatingError
from kedge.keys import NO_REVISION, Key, Origin, Revision
from kedge.observe.recording.recorder import Recorder
from kedge.server.service import (
    account_tokens,
    binding,
    deletion,
    event_expiry,
    eviction,
    gang_chunks,
    operations,
    reads,
    scale,
    version_origins,
    watches,
    writes,
)
from kedge.server.service.access.aggregation import store_aggregated_rules
from kedge.server.service.access.authorizer import Authorizer
from kedge.server.service.access.default_roles import ensure_default_roles
from kedge.server.service.access.role_table import DefaultRole
from kedge.server.service.admission import AdmissionChain
from kedge.server.service.admission_records import AdmissionRecords
from kedge.server.service.core import Core
from kedge.server.service.credentials import approvals
from kedge.server.service.credentials.default_accounts import keep_default_accounts
from kedge.server.service.credentials.expiry import sweep_for_ever
from kedge.server.service.credentials.key_record import ServerKeys, check_keys
from kedge.server.service.credentials.signing_rules import CertificateSigner
from kedge.server.service.fast import memory_get
from kedge.server.service.version_origins import VersionOrigin
from kedge.store import Store
from kedge.store.backup import Exporter, StoreExport
from kedge.store.encryption import RotationResult, ValueCipher, rotate

_R = TypeVar("_R", bound=Request[Any])
_T = TypeVar("_T")
_UPDATES: Final = {"scale": scale.update_scale, "approval": approvals.update_approval}
_PATCHES: Final = {"scale": scale.patch_scale, "approval": approvals.patch_approval}
"""Subresources whose object is not that of the kind, or only a part of it."""


def _update(core: Core, request: Update) -> Coroutine[Any, Any, Written]:
    return _UPDATES.get(request.subresource, writes.update)(core, request)


def _patch(core: Core, request: Patch) -> Coroutine[Any, Any, Written]:
    return _PATCHES.get(request.subresource, writes.patch)(core, request)


async def _raise(error: BadRequest) -> Any:
    raise error


HANDLERS: Final[dict[type[Request[Any]], Callable[[Core, Any], Coroutine[Any, Any, Any]]]] = {
    Get: reads.get,
    GetScale: scale.get_scale,
    List: reads.list_objects,
    Create: writes.create,
    Update: _update,
    Patch: _patch,
    Delete: deletion.delete,
    DeleteCollection: deletion.delete_collection,
    Bind: binding.bind,
    Reserve: gang_chunks.reserve,
    Evict: eviction.evict,
    ConfirmEnded: binding.confirm_ended,
    RequestToken: account_tokens.request_token,
}
"""The handler of each request. `OpenWatch` has none: its reply is a stream."""


_EVENT_SWEEPS: Final = 12
"""Sweeps for expired Events in the time that an Event lives."""


class Service(Verbs):
    """One API server without its transport. Several may stand on one store."""

    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        kinds: Registry = KINDS,
        admission: AdmissionChain | None = None,
        token_keys: account_tokens.TokenKeys | None = None,
        certificate_signer: CertificateSigner | None = None,
        cipher: ValueCipher | None = None,
    ) -> None:
        """`token_keys` sign and check tokens of ServiceAccounts; without them there are none. `certificate_signer`
        signs certificates; without it requests for them are only stored. `cipher` is the one that the store was opened
        with."""
        self._cipher = cipher
        self._core = Core(store, env, kinds, admission or AdmissionChain(), token_keys)
        self._core.certificate_signer = certificate_signer
        self._aggregation: asyncio.Task[None] | None = None

    @property
    def kinds(self) -> Registry:
        return self._core.kinds

    @property
    def access(self) -> Authorizer:
        """Decides what callers may do."""
        return self._core.access

    async def start_access(self) -> None:
        """Follow roles and bindings until `stop_access`. From now on writes must not give rights away."""
        await self._core.access.start()
        self._aggregation = self._core.env.spawn(store_aggregated_rules(self._core), name="aggregated roles")

    def stop_access(self) -> None:
        self._core.access.stop()
        if self._aggregation is not None:
            self._aggregation.cancel()

    def ensure_default_roles(self, more: Sequence[DefaultRole] = ()) -> Coroutine[Any, Any, int]:
        """Write default roles and bindings that are missing, and `more` of components. Needs the namespace
        kube-system."""
        return ensure_default_roles(self._core, more)

    def check_keys(self, keys: ServerKeys, *, replace: bool = False) -> Coroutine[Any, Any, None]:
        """Check the keys of this server against those recorded in the store. Needs the namespace kube-system.

        Raises `Terminal` if they differ, unless they are to `replace` the recorded ones.
        """
        return check_keys(self._core, keys, replace=replace)

    async def run_credentials(self) -> None:
        """Keep the default ServiceAccounts and delete expired credentials, for ever. The composition root spawns it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_default_accounts(self._core), name="default accounts")
            group.create_task(sweep_for_ever(self._core), name="expired credentials")

    def record_to(self, recorder: Recorder) -> None:
        """From now on record what admission changes and refuses."""
        self._core.admission_records = AdmissionRecords(self._core.env, recorder)

    def identify(self, token: str, audiences: Sequence[str] = ()) -> Coroutine[Any, Any, account_tokens.TokenIdentity]:
        """The user behind a token of a ServiceAccount. Raises `Unauthorized`."""
        return account_tokens.identify(self._core, token, audiences)

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        return self._checked(HANDLERS[type(request)], request)

    def get_nowait(self, key: Key) -> Object | None:
        """As `send` of a get, without suspending; None if this read must be awaited: call `send`."""
        return memory_get.get_nowait(self._core, key)

    def list_stored(self, request: List) -> Coroutine[Any, Any, reads.StoredList]:
        """As `send` of a list without selectors, with the stored versions: for transports that splice their bytes."""
        return self._checked(reads.list_stored, request)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        return self._checked(watches.watch, request)

    def open_event_stream(self, request: OpenWatch) -> Coroutine[Any, Any, watches.EventStream]:
        """As `open_watch`, with the events of one moment in one batch: for transports that send them in one message."""
        return self._checked(watches.watch_batches, request)

    def _checked(self, handler: Callable[[Core, _R], Coroutine[Any, Any, _T]], request: _R) -> Coroutine[Any, Any, _T]:
        """Handle a request whose texts are sound. As every error, that of others is raised when it is awaited."""
        try:
            check_request_text(request, self._core.env.limits)
        except BadRequest as error:
            return _raise(error)
        return handler(self._core, request)

    def version_origin(self, key: Key, revision: Revision = NO_REVISION) -> Coroutine[Any, Any, VersionOrigin]:
        """The write behind the version of an object at a revision, or the newest. Raises `NotFound`, `Compacted`."""
        return version_origins.version_origin(self._core, key, revision)

    def condition_origin(
        self, key: Key, condition: str, revision: Revision = NO_REVISION
    ) -> Coroutine[Any, Any, VersionOrigin]:
        """The write behind a condition of an object. Raises `NotFound`, `Compacted`."""
        return version_origins.condition_origin(self._core, key, condition, revision)

    async def export(self) -> StoreExport:
        """All objects at one revision, internal ones included: for backups."""
        if not isinstance(self._core.store, Exporter):
            raise MethodNotAllowed("this store cannot be backed up through a server: back up the store itself")
        return await self._core.store.export()

    async def rotate_keys(self, caller: Caller) -> RotationResult:
        """Write every encrypted value again with the first key. Raises `MethodNotAllowed`, `Misconfigured`."""
        if self._cipher is None:
            raise MethodNotAllowed("this server has no store with encryption: ask one that has")
        origin = Origin("", "", caller.user, caller.recorded_groups)
        return await rotate(self._core.store, self._cipher, self._core.env.limits, origin)

    async def run_upkeep(self) -> None:
        """Forget old operation ids and expired Events, for ever. The composition root spawns it."""
        env, every_s = self._core.env, self._core.env.limits.event_ttl_s / _EVENT_SWEEPS
        swept_s = env.monotonic()
        while True:
            await asyncio.sleep(min(env.limits.operation_window_s / 10, every_s))
            with suppress(OperatingError):  # the next sweep takes the rest
                await operations.sweep(self._core)
                if env.monotonic() - swept_s >= every_s:
                    swept_s = env.monotonic()
                    await event_expiry.sweep_events(self._core)
