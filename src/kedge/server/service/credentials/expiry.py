"""Deletes credentials at the end of their time: certificate signing requests, and bootstrap tokens that have expired.

Several servers may sweep one store: each delete proves the version that it has seen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from kedge.api.objects import Object
from kedge.api.tokens import parse_token_secret
from kedge.api.wellknown import BOOTSTRAP_TOKEN_TYPE, SECRET_KIND, SIGNING_REQUEST_KIND, SYSTEM_NAMESPACE
from kedge.errors import OperatingError
from kedge.server.service.core import Core
from kedge.server.service.credentials.signing_requests import is_settled

_EVERY_S: Final = 60.0


async def sweep_for_ever(core: Core) -> None:
    while True:
        with suppress(OperatingError):  # the next sweep takes the rest
            await sweep_credentials(core)
        await asyncio.sleep(_EVERY_S)


async def sweep_credentials(core: Core) -> int:
    """Delete what has expired. Returns how many objects."""
    swept = 0
    for kind, namespace, has_expired in (
        (SIGNING_REQUEST_KIND, "", _is_old_request),
        (SECRET_KIND, SYSTEM_NAMESPACE, _is_old_token),
    ):
        listing = await core.store.list(kind, namespace=namespace)
        old = [each for each in listing.entries if has_expired(core, core.object_of(each, remember=False))]
        deleted = await core.delete_all(old)
        core.credentials_expired.labels(kind).inc(deleted)
        swept += deleted
    return swept


def _is_old_request(core: Core, request: Object) -> bool:
    limits, made = core.env.limits, request.metadata.creation_timestamp
    kept_s = limits.signing_request_done_s if is_settled(request.edit()) else limits.signing_request_pending_s
    return made is not None and made + timedelta(seconds=kept_s) < core.env.now()


def _is_old_token(core: Core, secret: Object) -> bool:
    document = secret.edit()
    if document.get("type") != BOOTSTRAP_TOKEN_TYPE:
        return False
    token = parse_token_secret(document)
    return token is not None and token.expires is not None and token.expires < core.env.now()
