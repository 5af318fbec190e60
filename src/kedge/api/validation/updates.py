"""Rules of updates: which fields of an existing object may change.

`check_object` checks an object alone; `check_update` checks the step from one version to the next. A field of metadata
that the server owns may be absent in an update: the service copies it from the old version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kedge.api.codec import same_json
from kedge.api.validation.certificates import check_signing_update
from kedge.api.validation.error_list import ErrorList
from kedge.api.wellknown import (
    CLUSTER_ROLE_BINDING_KIND,
    CONFIG_MAP_KIND,
    CUSTOM_RESOURCE_DEFINITION_KIND,
    DEPLOYMENT_KIND,
    ENDPOINT_SLICE_KIND,
    JOB_KIND,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    ROLE_BINDING_KIND,
    ROLLOUT_KIND,
    SECRET_KIND,
    SERVICE_KIND,
    SIGNING_REQUEST_KIND,
)
from kedge.errors import Invalid
from kedge.keys import Key

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

IMMUTABLE = "field is immutable"
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def check_update(kind: Kind, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Check the step from one version to the next, both decoded, against the kind's rules of updates.

    Raises:
        Invalid: `errors` names every field that may not change so.
    """
    errors = ErrorList()
    _check_metadata(errors, _map(before, "metadata"), _map(after, "metadata"))
    rules = _RULES.get(kind.key_kind)
    if rules is not None:
        rules(errors, before, after)
    if errors:
        metadata = _map(after, "metadata")
        name = str(metadata.get("name") or "")
        listed = ", ".join(map(str, errors.found))
        raise Invalid(
            f'{kind.key_kind} "{name}" is invalid: {listed if len(errors.found) == 1 else f"[{listed}]"}',
            key=Key(kind.key_kind, str(metadata.get("namespace") or ""), name) if name else None,
            errors=errors.found,
        )


def _check_metadata(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for field in ("name", "namespace"):
        if (after.get(field) or "") != (before.get(field) or ""):
            errors.invalid(f"metadata.{field}", after.get(field), IMMUTABLE)
    for field in _SERVER_OWNED:
        value = after.get(field)
        if value is not None and value != "" and not same_json(value, before.get(field)):
            errors.invalid(f"metadata.{field}", value, IMMUTABLE)
    if before.get("deletionTimestamp"):
        added = [f for f in _list(after, "finalizers") if f not in _list(before, "finalizers")]
        if added:
            errors.forbidden(
                "metadata.finalizers",
                f"no new finalizers can be added if the object is being deleted, found new finalizers {added!r}",
            )


# -- pods ------------------------------------------------------------------------------------------

_POD_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _check_pod(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    old, new = _map(before, "spec"), _map(after, "spec")
    if same_json(old, new):
        return
    _check_deadline(errors, old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds"))
    _check_tolerations(errors, _list(old, "tolerations"), _list(new, "tolerations"))
    gated = bool(_list(old, "schedulingGates"))
    _check_gates(errors, _list(old, "schedulingGates"), _list(new, "schedulingGates"))
    if gated:
        _check_narrowed(errors, old, new)
    if not same_json(_fixed_part(old, gated=gated), _fixed_part(new, gated=gated)):
        errors.forbidden("spec", _POD_RULE)


def _fixed_part(spec: Mapping[str, Any], *, gated: bool) -> dict[str, Any]:
    """The part of a pod's spec that may never change. The other fields have rules of their own."""
    fixed = {
        name: value
        for name, value in spec.items()
        if value is not None and name not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [
                {name: value for name, value in container.items() if name != "image"}
                if isinstance(container, Mapping)
                else container
                for container in _list(fixed, field)
            ]
    if gated:
        fixed.pop("nodeSelector", None)
        fixed["affinity"] = _without_node_affinity(fixed.get("affinity"))
    return fixed


def _without_node_affinity(affinity: Any) -> Any:
    """The affinity without the terms that a gated pod may still narrow; its preferences may change freely."""
    if not isinstance(affinity, Mapping):
        return {}
    return {name: value for name, value in affinity.items() if name != "nodeAffinity" and value is not None}


def _check_deadline(errors: ErrorList, old: Any, new: Any) -> None:
    path = "spec.activeDeadlineSeconds"
    if old is None or (isinstance(old, int) and isinstance(new, int) and new <= old):
        return
    if new is None:
        errors.invalid(path, new, "must not update from a positive integer to nil value")
    else:
        errors.invalid(path, new, "must be less than or equal to previous value")


def _check_tolerations(errors: ErrorList, old: list[Any], new: list[Any]) -> None:
    """Existing tolerations stay; only their `tolerationSeconds` may change."""

    def identity(toleration: Any) -> Any:
        if not isinstance(toleration, Mapping):
            return toleration
        return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}

    if not all(any(same_json(identity(was), identity(now)) for now in new) for was in old):
        errors.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")


def _check_gates(errors: ErrorList, old: list[Any], new: list[Any]) -> None:
    added = [gate for gate in new if gate not in old]
    if added:
        errors.forbidden("spec.schedulingGates", f"only deletion is allowed, but found new scheduling gates {added!r}")


def _check_narrowed(errors: ErrorList, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """While a pod has scheduling gates its node constraints may be narrowed, never widened."""
    had, has = _map(old, "nodeSelector"), _map(new, "nodeSelector")
    if any(has.get(key) != value for key, value in had.items()):
        errors.invalid("spec.nodeSelector", dict(has), "only additions are allowed (no mutations or deletions)")
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    was, now = _node_terms(old), _node_terms(new)
    if not was:
        return
    if len(was) != len(now):
        errors.invalid(
            f"{path}.nodeSelectorTerms", now, "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        )
        return
    for index, (one, other) in enumerate(zip(was, now, strict=True)):
        for field in ("matchExpressions", "matchFields"):
            if _list(other, field)[: len(_list(one, field))] != _list(one, field):
                errors.invalid(
                    f"{path}.nodeSelectorTerms[{index}].{field}",
                    _list(other, field),
                    "only additions are allowed (no mutations or deletions)",
                )


def _node_terms(spec: Mapping[str, Any]) -> list[Any]:
    required = _map(_map(_map(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    return _list(required, "nodeSelectorTerms")


# -- other kinds -----------------------------------------------------------------------------------


def _fixed(*paths: str) -> Callable[[ErrorList, Mapping[str, Any], Mapping[str, Any]], None]:
    """A rule: none of these fields may change."""

    def check(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for path in paths:
            old, new = _dig(before, path), _dig(after, path)
            if not same_json(old, new):
                errors.invalid(path, new, IMMUTABLE)

    return check


def _check_job(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    _fixed("spec.selector", "spec.completionMode", "spec.manualSelector", "spec.podFailurePolicy")(
        errors, before, after
    )
    old, new = _map(before, "spec"), _map(after, "spec")
    elastic = (new.get("completionMode") == "Indexed" and new.get("completions") == new.get("parallelism")
               and new.get("completions") is not None)  # fmt: skip
    if not elastic:
        _fixed("spec.completions")(errors, before, after)
    suspended = old.get("suspend") is True
    if not same_json(_job_template(old, suspended=suspended), _job_template(new, suspended=suspended)):
        errors.invalid("spec.template", None, IMMUTABLE)


def _job_template(spec: Mapping[str, Any], *, suspended: bool) -> Any:
    """The template of a Job; while it is suspended, without the placement constraints."""
    template = spec.get("template")
    if not suspended or not isinstance(template, Mapping):
        return template
    loose = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
    pod = {name: value for name, value in _map(template, "spec").items() if name not in loose}
    metadata = {name: v for name, v in _map(template, "metadata").items() if name not in ("labels", "annotations")}
    return {**template, "spec": pod, "metadata": metadata}


def _check_service(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    old, new = _dig(before, "spec.clusterIP"), _dig(after, "spec.clusterIP")
    if (
        old
        and new != old
        and _dig(after, "spec.type") != "ExternalName"
        and _dig(before, "spec.type") != "ExternalName"
    ):
        errors.invalid("spec.clusterIPs[0]", new, "may not change once set")


def _check_data(*fields: str) -> Callable[[ErrorList, Mapping[str, Any], Mapping[str, Any]], None]:
    def check(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        if before.get("immutable") is not True:
            return
        if after.get("immutable") is not True:
            errors.forbidden("immutable", "field is immutable when `immutable` is set")
        for field in fields:
            if not same_json(before.get(field) or {}, after.get(field) or {}):
                errors.forbidden(field, "field is immutable when `immutable` is set")

    return check


def _check_role_ref(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """A subject must not get another role by an update that its grantor did not see."""
    if not same_json(before.get("roleRef"), after.get("roleRef")):
        errors.invalid("roleRef", after.get("roleRef"), "cannot change roleRef")


def _check_secret(errors: ErrorList, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    _check_data("data")(errors, before, after)
    if (before.get("type") or "Opaque") != (after.get("type") or "Opaque"):
        errors.invalid("type", after.get("type"), IMMUTABLE)


_RULES: dict[str, Callable[[ErrorList, Mapping[str, Any], Mapping[str, Any]], None]] = {
    POD_KIND: _check_pod,
    DEPLOYMENT_KIND: _fixed("spec.selector"),
    REPLICA_SET_KIND: _fixed("spec.selector"),
    JOB_KIND: _check_job,
    SERVICE_KIND: _check_service,
    CONFIG_MAP_KIND: _check_data("data", "binaryData"),
    SECRET_KIND: _check_secret,
    ENDPOINT_SLICE_KIND: _fixed("addressType"),
    PRIORITY_CLASS_KIND: _fixed("value", "preemptionPolicy"),
    CUSTOM_RESOURCE_DEFINITION_KIND: _fixed("spec.group", "spec.names.plural", "spec.scope"),
    RESERVATION_KIND: _fixed("spec.pod.uid", "spec.workloadUID"),
    ROLLOUT_KIND: _fixed("spec.target"),
    ROLE_BINDING_KIND: _check_role_ref,
    CLUSTER_ROLE_BINDING_KIND: _check_role_ref,
    SIGNING_REQUEST_KIND: check_signing_update,
}


def _dig(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _map(value: Any, field: str) -> Mapping[str, Any]:
    found = value.get(field) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _list(value: Any, field: str) -> list[Any]:
    found = value.get(field) if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []
