"""The last step of a write before it is staged: rights are checked, and the server adds fields of its own."""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.wellknown import EVENT_KIND, SIGNING_REQUEST_KIND
from kedge.server.service.access.event_checks import check_event
from kedge.server.service.access.write_checks import check_write
from kedge.server.service.core import Core, Proof
from kedge.server.service.credentials.signing_requests import complete


async def checked_write(core: Core, proof: Proof, options: WriteOptions, old: Object | None, new: Object) -> Object:
    """Check a create or an update, and return the object to store.

    Raises:
        Forbidden, NotFound: as `check_write` and `check_event`.
        BadRequest: a certificate signing request cannot be read.
    """
    check_write(core, options, old, new)
    if new.key.kind == EVENT_KIND:
        await check_event(core, options, old, new)
    return new if new.key.kind != SIGNING_REQUEST_KIND else await complete(core, proof, options, old, new)
