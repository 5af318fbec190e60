"""Limit ranges: the defaults that they set in a new pod, and the limits that it must keep. Pure.

The rules and the error texts are those of Kubernetes' LimitRanger. Items for persistent volume claims are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kedge.api.quantity import Quantity
from kedge.api.views import Container, LimitRangeItem, LimitRangeView, PodSpec, PodView
from kedge.api.wellknown import LIMIT_RANGER_ANNOTATION, POD_KIND
from kedge.placement.resources import exact_total

_CONTAINER, _POD = "Container", POD_KIND
Amounts = Mapping[str, Quantity]


# -- defaults ----------------------------------------------------------------------------------------


def set_defaults(pod: dict[str, Any], limit_range: LimitRangeView) -> bool:
    """Set the requests and limits that containers of a pod leave out, in place. Returns whether anything changed."""
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    for item in limit_range.spec.limits:
        if item.type == _CONTAINER:
            requests |= item.default_request
            limits |= item.default
    notes: list[str] = []
    for field, what in (("containers", "container"), ("initContainers", "init container")):
        containers = _map(pod.get("spec")).get(field)
        for container in containers if isinstance(containers, list) else ():
            if isinstance(container, dict):
                notes += _filled(container, requests, limits, what)
    if notes:
        metadata = pod["metadata"]
        note = f"LimitRanger plugin set: {'; '.join(notes)}"
        metadata["annotations"] = {**_map(metadata.get("annotations")), LIMIT_RANGER_ANNOTATION: note}
    return bool(notes)


def _map(value: Any) -> dict[str, Any]:
    """A part of a pod that policies may still correct: one that is malformed counts as absent."""
    return value if isinstance(value, dict) else {}


def _filled(container: dict[str, Any], requests: Amounts, limits: Amounts, what: str) -> Iterator[str]:
    resources = dict(_map(container.get("resources")))
    for field, defaults, word in (("requests", requests, "request"), ("limits", limits, "limit")):
        own = _map(resources.get(field))
        added = sorted(name for name in defaults if name not in own)
        if added:
            resources[field] = own | {name: str(defaults[name]) for name in added}
            container["resources"] = resources
            yield f"{', '.join(added)} {word} for {what} {container.get('name')}"


# -- limits ------------------------------------------------------------------------------------------


def violations(pod: PodView, limit_range: LimitRangeView) -> list[str]:
    """Why a pod does not keep a limit range; empty if it does."""
    spec = pod.spec
    found: dict[str, None] = {}  # in order, each text once
    for item in limit_range.spec.limits:
        if item.type == _CONTAINER:
            for container in (*spec.containers, *spec.init_containers):
                resources = container.resources
                found |= dict.fromkeys(_broken(item, resources.requests, resources.limits))
        elif item.type == _POD:
            found |= dict.fromkeys(_broken(item, _total(spec, "requests"), _total(spec, "limits")))
    return list(found)


def _total(spec: PodSpec, which: str) -> Amounts:
    """The amounts of a whole pod, each in the form of the first container that has it."""
    forms: dict[str, Quantity] = {}
    parts: tuple[Container, ...] = (*spec.containers, *spec.init_containers)
    for container in parts:
        forms = dict(getattr(container.resources, which)) | forms
    total = exact_total(spec, which)
    return {name: Quantity(nano, forms[name].format if name in forms else "DecimalSI") for name, nano in total.items()}


def _broken(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, least in sorted(item.min.items()):
        rule = f"minimum {name} usage per {item.type} is {least}"
        yield from _below(rule, least, requests.get(name), limits.get(name))
    for name, most in sorted(item.max.items()):
        rule = f"maximum {name} usage per {item.type} is {most}"
        yield from _above(rule, most, requests.get(name), limits.get(name))
    for name, ratio in sorted(item.max_limit_request_ratio.items()):
        rule = f"{name} max limit to request ratio per {item.type} is {ratio}"
        yield from _apart(rule, ratio, requests.get(name), limits.get(name))


def _below(rule: str, least: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    if request is None:
        yield f"{rule}.  No request is specified"
    elif request < least:
        yield f"{rule}, but request is {request}"
    elif limit is not None and limit < least:
        yield f"{rule}, but limit is {limit}"


def _above(rule: str, most: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    if limit is None:
        yield f"{rule}.  No limit is specified"
    elif limit > most:
        yield f"{rule}, but limit is {limit}"
    elif request is not None and request > most:
        yield f"{rule}, but request is {request}"


def _apart(rule: str, ratio: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    if request is None or not request.nano:
        yield f"{rule}, but no request is specified or request is 0"
    elif limit is None or not limit.nano:
        yield f"{rule}, but no limit is specified or limit is 0"
    elif limit.nano * 10**9 > ratio.nano * request.nano:
        yield f"{rule}, but provided ratio is {limit.nano / request.nano:f}"
