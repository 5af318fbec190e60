"""Rules of limit ranges, with the error texts of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.api.names import qualified_name_problem
from kedge.api.quantity import NANO, Quantity
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.resources import check_amounts, is_overcommittable
from kedge.api.views import LimitRangeItem, LimitRangeView
from kedge.api.wellknown import POD_KIND

_STANDARD = ("Container", "PersistentVolumeClaim", POD_KIND)
_BY_CONTAINER_ONLY = "may not be specified when `type` is 'Pod'"


def check_limit_range(errors: ErrorList, limit_range: LimitRangeView) -> None:
    seen: set[str] = set()
    for index, item in enumerate(limit_range.spec.limits):
        path = f"spec.limits[{index}]"
        _check_type(errors, item.type, f"{path}.type")
        if item.type in seen:
            errors.duplicate(f"{path}.type", item.type)
        seen.add(item.type)
        for field, amounts in (
            ("max", item.max),
            ("min", item.min),
            ("default", item.default),
            ("defaultRequest", item.default_request),
            ("maxLimitRequestRatio", item.max_limit_request_ratio),
        ):
            # A ratio is a plain number, whatever it is the ratio of.
            for name in amounts if field == "maxLimitRequestRatio" else ():
                errors.name(f"{path}.{field}[{name}]", name, qualified_name_problem(name))
            if field != "maxLimitRequestRatio":
                check_amounts(errors, amounts, f"{path}.{field}")
        if item.type == POD_KIND:
            for field, amounts in (("default", item.default), ("defaultRequest", item.default_request)):
                if amounts:
                    errors.forbidden(f"{path}.{field}", _BY_CONTAINER_ONLY)
        if item.type == "PersistentVolumeClaim" and "storage" not in {**item.min, **item.max}:
            errors.required(
                f"{path}.limits", "either minimum or maximum storage value is required, but neither was provided"
            )
        for name in sorted({*item.max, *item.min, *item.default, *item.default_request, *item.max_limit_request_ratio}):
            for field, value, why in _conflicts(item, name):
                errors.invalid(f"{path}.{field}[{name}]", value, why)


def _check_type(errors: ErrorList, name: str, path: str) -> None:
    if not name:
        errors.required(path)
    elif qualified_name_problem(name):
        errors.invalid(path, name, qualified_name_problem(name))
    elif "/" not in name and name not in _STANDARD:
        errors.invalid(path, name, "must be a standard limit type or fully qualified")


def _conflicts(item: LimitRangeItem, name: str) -> Iterator[tuple[str, Quantity, str]]:
    """Amounts of one resource that contradict each other: the field, its value and why."""
    least, most, ratio = item.min.get(name), item.max.get(name), item.max_limit_request_ratio.get(name)
    limit, request = item.default.get(name), item.default_request.get(name)
    if least is not None and most is not None and least > most:
        yield "min", least, f"min value {least} is greater than max value {most}"
    if request is not None and least is not None and least > request:
        yield "defaultRequest", request, f"min value {least} is greater than default request value {request}"
    if request is not None and most is not None and request > most:
        yield "defaultRequest", request, f"default request value {request} is greater than max value {most}"
    if request is not None and limit is not None and request > limit:
        yield "defaultRequest", request, f"default request value {request} is greater than default limit value {limit}"
    if limit is not None and least is not None and least > limit:
        yield "default", limit, f"min value {least} is greater than default value {limit}"
    if limit is not None and most is not None and limit > most:
        yield "default", limit, f"default value {limit} is greater than max value {most}"
    if ratio is not None and ratio.nano < NANO:
        yield "maxLimitRequestRatio", ratio, f"ratio {ratio} is less than 1"
    widest = most.nano / least.nano if most is not None and least is not None and least.nano > 0 else None
    if ratio is not None and widest is not None and ratio.nano > widest * NANO:
        yield "maxLimitRequestRatio", ratio, f"ratio {ratio} is greater than max/min = {widest:f}"
    if not is_overcommittable(name) and limit is not None and request is not None and limit != request:
        yield "defaultRequest", request, f"default value {limit} must equal to defaultRequest value {request} in {name}"
