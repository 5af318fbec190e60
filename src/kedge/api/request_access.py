"""A request as authorization sees it, whatever transport it came by: as its HTTP form would be. Pure."""

from __future__ import annotations

from typing import Any

from kedge.api.access import Attributes
from kedge.api.kinds import Registry
from kedge.api.requests import DeleteCollection, List, OpenWatch, Request
from kedge.api.wellknown import NAMESPACE_KIND


def attributes_of_request(request: Request[Any], kinds: Registry) -> Attributes:
    """The request for the authorizer. A namespace is in itself, as in Kubernetes."""
    verb, part = request.verb, request.subresource
    target, selector = request.target, ""
    kind = kinds.of_key_kind(target.kind)
    if isinstance(request, List | OpenWatch):
        selector = request.options.field_selector
    elif isinstance(request, DeleteCollection):
        selector = request.selection.field_selector
    namespace = target.name if target.kind == NAMESPACE_KIND else target.namespace
    name = "" if verb == "create" and not part else target.name
    if selector and not name:
        name = _selected_name(selector)
    return Attributes(verb, kind.group, kind.plural, part, namespace, name, selector)


def _selected_name(field_selector: str) -> str:
    """A selector of one name is that name, as in Kubernetes."""
    for part in field_selector.split(","):
        field, _, value = part.partition("=")
        if field == "metadata.name":
            return value.removeprefix("=")
    return ""
