"""Versions of a kind beside the stored one: requests are converted to the stored version, replies back from it.

Events are served as `v1`, which is stored, and as `events.k8s.io/v1`. Of `autoscaling/v1` only creation is served,
because `kubectl autoscale` sends it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kedge.api.codec import encode_object, parse_object
from kedge.api.kinds import KINDS, Kind, PrinterColumn
from kedge.api.objects import Object
from kedge.api.requests import ObjectList, Written
from kedge.api.validation.events import check_new_event
from kedge.api.wellknown import AUTOSCALER_KIND, EVENT_KIND, EVENTS_GROUP
from kedge.errors import BadRequest
from kedge.server.http.routes import ResourcePath

Document = dict[str, Any]
Convert = Callable[[Mapping[str, Any]], Document]
_AUTOSCALING = "autoscaling"
_TARGET = "targetCPUUtilizationPercentage"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """One version of a kind that is served but not stored."""

    kind: Kind
    """As it is served: group, version, columns."""
    stored: Kind
    to_stored: Convert
    from_stored: Convert
    fields: Mapping[str, str] = field(default_factory=dict)
    """Names in field selectors, with the stored names."""
    check_new: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Rules for new objects that only this version has."""
    create_only: bool = False

    def stored_body(self, body: Mapping[str, Any] | bytes) -> Document:
        """An object of a request in the stored version.

        Raises:
            BadRequest: it is of another version or kind than this one.
        """
        document = parse_object(body)
        sent = document.get("apiVersion"), document.get("kind")
        if any(sent) and sent != (self.kind.api_version, self.kind.kind):
            raise BadRequest(
                f"the object is a {sent[1]} of {sent[0]}, but was sent as a {self.kind.kind} of {self.kind.api_version}"
            )
        return {**self.to_stored(document), "apiVersion": self.stored.api_version, "kind": self.stored.kind}

    def document(self, body: Mapping[str, Any]) -> Document:
        """A stored object in this version."""
        return {**self.from_stored(body), "apiVersion": self.kind.api_version, "kind": self.kind.kind}

    def object(self, found: Object) -> Object:
        return Object(
            self.kind,
            found.key,
            encode_object(self.document(found.edit())),
            revision=found.revision,
            created=found.created,
            origin=found.origin,
        )

    def listed(self, found: ObjectList) -> ObjectList:
        """The list as of this kind. Its objects are still of the stored version: `object` converts each."""
        return msgspec.structs.replace(found, kind=self.kind)

    def written(self, written: Written) -> Written:
        return Written(self.object(written.object), written.warnings, written.removed)

    def stored_query(self, query: Mapping[str, str]) -> Mapping[str, str]:
        """Query parameters with the field selector in names of the stored version."""
        selector = query.get("fieldSelector")
        return {**query, "fieldSelector": self._stored_selector(selector)} if selector else query

    def _stored_selector(self, selector: str) -> str:
        terms = []
        for term in selector.split(","):
            name, operator, value = _split_term(term)
            stored = name if name.startswith("metadata.") else self.fields.get(name)
            if stored is None:
                raise BadRequest(f'field label not supported: "{name}" in {self.kind.resource}')
            terms.append(f"{stored}{operator}{value}")
        return ",".join(terms)


def served_version(path: ResourcePath) -> ServedVersion | None:
    """The version behind a path; None for the stored one."""
    return _BY_PATH.get((path.group, path.version, path.resource))


def listed_versions() -> tuple[Kind, ...]:
    """Kinds of versions that discovery lists beside the stored ones."""
    return tuple(each.kind for each in _VERSIONS if not each.create_only)


def _split_term(term: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        name, found, value = term.partition(operator)
        if found:
            return name.strip(), operator, value
    raise BadRequest(f"the field selector {term!r} has no operator: write NAME=VALUE")


# -- events.k8s.io/v1 ------------------------------------------------------------------------------

_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""Fields of `events.k8s.io/v1`, with their names in `v1`. The others have the same name in both."""
_CORE_FIELDS = {stored: served for served, stored in _EVENT_FIELDS.items()}
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _core_event(body: Mapping[str, Any]) -> Document:
    return {_EVENT_FIELDS.get(name, name): value for name, value in body.items() if name not in _CORE_FIELDS}


def _served_event(body: Mapping[str, Any]) -> Document:
    served = {_CORE_FIELDS.get(name, name): value for name, value in body.items() if name not in _EVENT_FIELDS}
    # Typed clients require it, and an event that was sent as `v1` has only its first time, in whole seconds.
    first = served.get("deprecatedFirstTimestamp") or (served.get("metadata") or {}).get("creationTimestamp")
    return {**served, "eventTime": served.get("eventTime") or _micro_time(first)}


def _micro_time(text: Any) -> Any:
    """A time in whole seconds with its microseconds; any other value is returned as it is."""
    return f"{text[:-1]}.000000Z" if isinstance(text, str) and text.endswith("Z") and "." not in text else text


# -- autoscaling/v1 --------------------------------------------------------------------------------


def _stored_autoscaler(body: Mapping[str, Any]) -> Document:
    spec = body.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise BadRequest("spec is an object")
    kept = {name: value for name, value in spec.items() if name != _TARGET}
    percent = spec.get(_TARGET)
    if percent is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        kept["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    return {**{name: value for name, value in body.items() if name != "status"}, "spec": kept}


def _served_autoscaler(body: Mapping[str, Any]) -> Document:
    """A new autoscaler: it has no status yet."""
    spec = body["spec"]
    kept = {name: spec[name] for name in ("scaleTargetRef", "minReplicas", "maxReplicas") if name in spec}
    for metric in spec.get("metrics") or ():
        resource = metric.get("resource") or {}
        if resource.get("name") == "cpu" and "averageUtilization" in resource.get("target", {}):
            kept[_TARGET] = resource["target"]["averageUtilization"]
    status = {"currentReplicas": 0, "desiredReplicas": 0}
    return {**body, "spec": kept, "status": status}


# -- the versions ----------------------------------------------------------------------------------

_EVENT = KINDS.of_key_kind(EVENT_KIND)
_AUTOSCALER = KINDS.of_key_kind(AUTOSCALER_KIND)


def _event_column(column: PrinterColumn) -> PrinterColumn:
    first, dot, rest = column.path.lstrip(".").partition(".")
    return dataclasses.replace(column, path=f".{_CORE_FIELDS[first]}{dot}{rest}") if first in _CORE_FIELDS else column


_VERSIONS = (
    ServedVersion(
        kind=dataclasses.replace(
            _EVENT, group=EVENTS_GROUP, columns=tuple(_event_column(column) for column in _EVENT.columns)
        ),
        stored=_EVENT,
        to_stored=_core_event,
        from_stored=_served_event,
        fields={
            "reason": "reason",
            "type": "type",
            "reportingController": "reportingComponent",
            **{f"regarding.{name}": f"involvedObject.{name}" for name in _REFERENCE},
        },
        check_new=check_new_event,
    ),
    ServedVersion(
        kind=dataclasses.replace(_AUTOSCALER, version="v1"),
        stored=_AUTOSCALER,
        to_stored=_stored_autoscaler,
        from_stored=_served_autoscaler,
        create_only=True,
    ),
)
_BY_PATH = {(each.kind.group, each.kind.version, each.kind.plural): each for each in _VERSIONS}
