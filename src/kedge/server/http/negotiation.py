"""The form of a reply that a client accepts: from `Accept`, `Accept-Encoding` and `pretty`.

Kubernetes' clients list several forms in order of preference; the first that this server has is taken.
"""

from __future__ import annotations

from enum import Enum

from kedge.api.wellknown import DISCOVERY_GROUP, META_GROUP
from kedge.caches import remembered
from kedge.errors import NotAcceptable


class ReplyForm(Enum):
    """The forms of an object or list on the wire."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    PARTIAL_LIST = "PartialObjectMetadataList"


@remembered(entries=256, entry_bytes=1024, key_length=512)
def reply_form(accept: bytes) -> ReplyForm:
    """The first acceptable form. Clients send few different headers, so the answer is remembered.

    Raises:
        NotAcceptable: there is none.
    """
    if not accept or accept in (b"*/*", b"application/json"):
        return ReplyForm.OBJECT
    for part in accept.decode("latin-1").split(","):
        form = _form(part)
        if form is not None:
            return form
    raise NotAcceptable("only application/json is served, as an object, a Table or PartialObjectMetadata")


def _form(part: str) -> ReplyForm | None:
    media, *parameters = (each.strip() for each in part.split(";"))
    if media not in ("application/json", "*/*", "application/*"):
        return None
    options = dict(each.split("=", 1) for each in parameters if "=" in each)
    wanted = options.get("as")
    if wanted is None:
        return ReplyForm.OBJECT
    if options.get("g") != META_GROUP or options.get("v") != "v1":
        return None
    try:
        return ReplyForm(wanted)
    except ValueError:
        return None


@remembered(entries=256, entry_bytes=1024, key_length=512)
def wants_aggregated_discovery(accept: bytes) -> bool:
    """Whether the client prefers `APIGroupDiscoveryList`, in its stable version."""
    for part in accept.decode("latin-1").split(","):
        options = {each.strip() for each in part.split(";")}
        if {"as=APIGroupDiscoveryList", f"g={DISCOVERY_GROUP}", "v=v2"} <= options:
            return True
        if options == {"application/json"}:
            return False
    return False


@remembered(entries=256, entry_bytes=1024, key_length=512)
def accepts_gzip(accept_encoding: bytes) -> bool:
    codings = (part.split(";") for part in accept_encoding.decode("latin-1").replace(" ", "").split(","))
    return any(coding[0] == "gzip" and "q=0" not in coding[1:] for coding in codings)
