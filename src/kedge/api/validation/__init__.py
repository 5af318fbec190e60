"""Validation: whether an object follows its kind's rules, and which of its fields kedge does not act on.

`check_object` runs on every write, so the common case is one strict decode and one pass of plain comparisons; only an
object that fails it is examined field by field, so that every bad field is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.api.codec import parse_object
from kedge.api.validation import certificates, core, kedge_dev, known_parts, pods, rbac, resize, workloads
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.limit_ranges import check_limit_range
from kedge.api.validation.metadata import check_metadata
from kedge.api.validation.updates import check_update
from kedge.api.views import PodView, View
from kedge.api.views.schema import Findings, dec_hook, decoder_of, examine, strict_twin
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    CLUSTER_ROLE_BINDING_KIND,
    CLUSTER_ROLE_KIND,
    CONFIG_MAP_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    ENDPOINT_SLICE_KIND,
    EVENT_KIND,
    JOB_KIND,
    LEASE_KIND,
    LIMIT_RANGE_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    RECORDING_WINDOW_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ROLE_BINDING_KIND,
    ROLE_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
    SECRET_KIND,
    SERVICE_KIND,
    SIGNING_REQUEST_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.errors import FieldError, Invalid
from kedge.keys import Key
from kedge.limits import ERROR_FIELDS_MAX

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

__all__ = ["Checked", "check_object", "check_resize", "check_update"]


REPORTED_FIELDS_MAX = ERROR_FIELDS_MAX
"""Field errors in one reply. More of them have one common cause."""
NOT_ACTED_ON = "kedge stores this field but does not act on it"


class Checked(msgspec.Struct, frozen=True, gc=False):
    """A valid object."""

    view: View
    """An instance of the kind's view; of plain `View`, with metadata alone, for a kind that has none."""
    warnings: tuple[str, ...] = ()
    """One for each field that is stored but not acted on."""


_RULES: dict[str, Callable[[ErrorList, Any], None]] = {
    POD_KIND: pods.check_pod,
    NODE_KIND: core.check_node,
    NAMESPACE_KIND: core.check_namespace,
    RESOURCE_QUOTA_KIND: core.check_resource_quota,
    LIMIT_RANGE_KIND: check_limit_range,
    SERVICE_KIND: core.check_service,
    CONFIG_MAP_KIND: core.check_config_map,
    SECRET_KIND: core.check_secret,
    EVENT_KIND: core.check_event,
    ENDPOINT_SLICE_KIND: core.check_endpoint_slice,
    DEPLOYMENT_KIND: workloads.check_deployment,
    REPLICA_SET_KIND: workloads.check_replica_set,
    JOB_KIND: workloads.check_job,
    AUTOSCALER_KIND: workloads.check_autoscaler,
    DISRUPTION_BUDGET_KIND: workloads.check_disruption_budget,
    PRIORITY_CLASS_KIND: core.check_priority_class,
    LEASE_KIND: core.check_lease,
    ROLE_KIND: rbac.check_role,
    CLUSTER_ROLE_KIND: rbac.check_cluster_role,
    ROLE_BINDING_KIND: rbac.check_role_binding,
    CLUSTER_ROLE_BINDING_KIND: rbac.check_cluster_role_binding,
    SIGNING_REQUEST_KIND: certificates.check_signing_request,
    RESERVATION_KIND: kedge_dev.check_reservation,
    NODE_ALLOCATION_KIND: kedge_dev.check_node_allocation,
    SCHEDULING_POLICY_KIND: kedge_dev.check_scheduling_policy,
    ZONE_QUOTA_KIND: kedge_dev.check_zone_quota,
    ROLLOUT_KIND: kedge_dev.check_rollout,
    RECORDING_WINDOW_KIND: kedge_dev.check_recording_window,
}
_SCHEMAS: dict[str, type[View]] = {
    CONFIG_MAP_KIND: core.ConfigMapSchema,
    SECRET_KIND: core.SecretSchema,
    EVENT_KIND: core.EventSchema,
}
"""Schemas of kinds that kedge stores but does not act on."""


def check_object(kind: Kind, value: bytes) -> Checked:
    """Check an object in its stored form against its kind's rules.

    Raises:
        Invalid: `errors` names every bad field at once.
        BadRequest: it is not a JSON object.
    """
    if kind.view is PodView and len(value) <= known_parts.POD_BYTES_MAX:
        pod = known_parts.read_known_pod(value)
        if pod is not None:
            errors = ErrorList()
            check_metadata(errors, kind, pod.metadata, shared_parts_clean=True)
            if not errors:
                return Checked(pod)
    return _check_whole(kind, value)


def _check_whole(kind: Kind, value: bytes) -> Checked:
    """As `check_object`, without the cache of known pods."""
    schema: type[View] = kind.view or _SCHEMAS.get(kind.key_kind, View)
    try:
        decode_names, decode = _decoders(schema)
        decode_names(value)
        view = decode(value)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        return _check_slowly(kind, schema, value)
    errors = ErrorList()
    check_metadata(errors, kind, view.metadata)
    rules = _RULES.get(kind.key_kind)
    if rules is not None:
        rules(errors, view)
    if errors:
        raise invalid(kind, view, errors.found)
    return Checked(view)


@cache
def _decoders(schema: type[View]) -> tuple[Callable[[bytes], Any], Callable[[bytes], View]]:
    """A decoder that rejects unknown fields, and one that reads the known ones."""
    return decoder_of(strict_twin(schema)).decode, decoder_of(schema).decode


def _check_slowly(kind: Kind, schema: type[View], value: bytes) -> Checked:
    """As `check_object`, for an object that has nulls, unknown fields, or fields of the wrong type."""
    findings = examine(schema, parse_object(value))
    view = msgspec.convert(findings.cleaned, schema, dec_hook=dec_hook)
    errors = ErrorList()
    check_metadata(errors, kind, view.metadata)
    rules = _RULES.get(kind.key_kind)
    if rules is not None:
        rules(errors, view)
    reported = [*findings.errors, *_unexplained(errors.found, findings)]
    if reported:
        raise invalid(kind, view, reported)
    if kind.view is None:
        return Checked(view)
    return Checked(view, tuple(f"{path}: {NOT_ACTED_ON}" for path in findings.unknown[:REPORTED_FIELDS_MAX]))


def check_resize(kind: Kind, before: PodView, after: PodView) -> None:
    """Check that a pod may be resized so.

    Raises:
        Invalid: `errors` names every field that may not change so.
    """
    errors = ErrorList()
    resize.check_resize(errors, before, after)
    if errors:
        raise invalid(kind, after, errors.found)


def _unexplained(errors: Sequence[FieldError], findings: Findings) -> list[FieldError]:
    """The errors of the rules that are not a consequence of a field that `examine` left out."""
    wrong = {error.path for error in findings.errors}
    chosen = {parent for path in findings.unknown for parent in _parents(path)}
    return [
        error
        for error in errors
        if error.path not in wrong
        and not any(parent in wrong for parent in _parents(error.path))
        # One of several alternatives is required, and the one that is set is a field unknown to kedge.
        and not (error.type == "FieldValueRequired" and error.path in chosen)
    ]


def _parents(path: str) -> list[str]:
    """The paths above one: `a.b[0]` has `a` and `a.b`."""
    return [path[:at] for at, char in enumerate(path) if char in ".["]


def invalid(kind: Kind, view: View, errors: Sequence[FieldError]) -> Invalid:
    """The error for an object with these bad fields, in Kubernetes' format."""
    name = view.metadata.name or view.metadata.generate_name
    reported = errors[:REPORTED_FIELDS_MAX]
    listed = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, reported))}]"
    if len(errors) > len(reported):
        listed += f" and {len(errors) - len(reported)} more"
    key = Key(kind.key_kind, view.metadata.namespace, name) if name else None
    return Invalid(f'{kind.key_kind} "{name}" is invalid: {listed}', key=key, errors=reported)
