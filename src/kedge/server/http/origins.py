"""`GET /kedge/origins/...`: the decision, caller and operation behind a version or a condition of an object.

The path after the prefix is that of the object; a caller that may get the object may ask. `docs/wire.md` has the
document.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kedge.api.access import Caller
from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.errors import BadRequest, MethodNotAllowed, NotFound
from kedge.keys import NO_REVISION, Key, Revision
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.parameters import is_number, parse_query
from kedge.server.http.resources import Resources
from kedge.server.http.routes import attributes_of, resource_path
from kedge.server.service import Service
from kedge.server.service.version_origins import VersionOrigin

ORIGINS_PREFIX: Final = b"/kedge/origins"
ORIGIN_KIND: Final = "VersionOrigin"
_encode = msgspec.json.Encoder().encode


async def serve_origin(
    service: Service, resources: Resources, request: HttpRequest, exchange: Exchange, caller: Caller
) -> None:
    """Answer one lookup.

    Raises:
        NotFound: the object, the version or the condition does not exist.
        Compacted: it is no longer in history.
    """
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("an origin can only be read: use GET")
    path = resource_path(request.path.removeprefix(ORIGINS_PREFIX))
    if path is None or not path.name or path.subresource:
        raise NotFound("no object has this path: append the path of one object to /kedge/origins")
    await service.access.check(caller, attributes_of(path, "get"))
    query = parse_query(request.query)
    key = Key(resources.kind_of(path).key_kind, path.namespace, path.name)
    revision, condition = _revision(query.get("revision", "")), query.get("condition", "")
    if condition:
        found = await service.condition_origin(key, condition, revision)
    else:
        found = await service.version_origin(key, revision)
    exchange.respond(200, _encode(origin_document(found, revision, condition)))


def origin_document(found: VersionOrigin, asked: Revision, condition: str = "") -> dict[str, Any]:
    origin = found.origin
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": ORIGIN_KIND,
        "object": str(found.key),
        "condition": condition,
        "asked": asked or None,
        "revision": found.revision,
        "created": found.created or None,
        "deleted": found.deleted,
        "decision": origin.decision,
        "controller": origin.decision.partition(":")[0],
        "operation": origin.operation,
        "caller": origin.caller,
        "groups": list(origin.groups),
    }


def _revision(text: str) -> Revision:
    if not text:
        return NO_REVISION
    if not is_number(text) or not int(text):
        raise BadRequest(f"revision={text[:40]}: a revision is a positive number")
    return int(text)
