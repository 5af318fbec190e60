"""The text of `kedge describe`: fields by name, conditions and events as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kedge.api.wellknown import LAST_APPLIED
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.output import format_rows
from kedge.cli.resources.session import Session
from kedge.errors import Forbidden, NotFound

_HIDDEN = {"apiVersion", "kind", "metadata", "managedFields"}
_CONDITION = ("type", "status", "reason", "message")
INDENT = "  "


async def events_of(session: Session, kind: ResourceType, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Events about an object, oldest first; none where the caller may not read them."""
    metadata = body["metadata"]
    selector = f"involvedObject.kind={kind.kind},involvedObject.name={metadata['name']}"
    (events,) = (await session.catalog()).resolve("events")
    try:
        path = session.path(events, namespace=metadata.get("namespace", ""))
        listed = await session.rest.call("GET", path, query={"fieldSelector": selector})
    except (Forbidden, NotFound):
        return []
    found = [
        each
        for each in listed.get("items") or ()
        if each["involvedObject"].get("uid") in (None, "", metadata.get("uid"))
    ]
    return sorted(found, key=_moment)


def _moment(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def description(body: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Pure: the object and its events as text."""
    metadata = body["metadata"]
    lines = [f"Name:         {metadata['name']}"]
    if metadata.get("namespace"):
        lines.append(f"Namespace:    {metadata['namespace']}")
    lines += _pairs("Labels", metadata.get("labels") or {})
    shown = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != LAST_APPLIED}
    lines += _pairs("Annotations", shown)
    lines.append(f"Created:      {metadata.get('creationTimestamp', '<unknown>')}")
    for owner in metadata.get("ownerReferences") or ():
        word = "Controlled By" if owner.get("controller") else "Owned By"
        lines.append(f"{word}: {owner['kind']}/{owner['name']}")
    if metadata.get("deletionTimestamp"):
        lines.append(f"Terminating:  since {metadata['deletionTimestamp']}")
    for name, value in body.items():
        if name not in _HIDDEN:
            lines += _field(name, value, "")
    return "\n".join([*lines, *_events(events)])


def _pairs(title: str, pairs: Mapping[str, Any]) -> Iterator[str]:
    head = f"{title}:".ljust(14)
    if not pairs:
        yield f"{head}<none>"
    for number, (name, value) in enumerate(sorted(pairs.items())):
        yield f"{head if not number else ' ' * 14}{name}={value}"


def _field(name: str, value: Any, indent: str) -> Iterator[str]:
    title = f"{indent}{_words(name)}:"
    if isinstance(value, Mapping):
        yield title if value else f"{title}  <none>"
        for inner, each in value.items():
            yield from _field(inner, each, indent + INDENT)
    elif name == "conditions" and isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        yield title
        rows = [[str(each.get(column, "")) for column in _CONDITION] for each in value]
        yield from _indented(format_rows([each.capitalize() for each in _CONDITION], rows), indent + INDENT)
    elif isinstance(value, list):
        yield title if value else f"{title}  <none>"
        for each in value:
            yield from _item(each, indent + INDENT)
    else:
        yield f"{title}  {_scalar(value)}"


def _item(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        lines = [line for name, each in value.items() for line in _field(name, each, indent + INDENT)]
        if lines:
            yield f"{indent}- {lines[0].removeprefix(indent + INDENT)}"
        yield from lines[1:]
    else:
        yield f"{indent}- {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "<none>" if value is None else str(value)


def _words(name: str) -> str:
    """`restartPolicy` as `Restart Policy`. Names that are data, such as labels, stay."""
    if not name.isalnum():
        return name
    text = "".join(
        f" {each}" if each.isupper() and not name[index - 1].isupper() else each for index, each in enumerate(name)
    )
    return text[:1].upper() + text[1:]


def _events(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not events:
        yield "Events:       <none>"
        return
    yield "Events:"
    rows = []
    for each in events:
        source = (each.get("source") or {}).get("component") or each.get("reportingComponent") or ""
        count = f" (x{each['count']})" if each.get("count", 1) > 1 else ""
        rows.append(
            [each.get("type", ""), each.get("reason", ""), f"{_moment(each)}{count}", source, each.get("message", "")]
        )
    yield from _indented(format_rows(["Type", "Reason", "Last Seen", "From", "Message"], rows), INDENT)


def _indented(text: str, indent: str) -> list[str]:
    return [f"{indent}{line}" for line in text.splitlines()]
