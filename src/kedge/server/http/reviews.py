"""Reviews: kinds that are answered and never stored. A caller asks for its identity, or for its permissions.

`kubectl auth whoami` and `kubectl auth can-i` send them. Every authenticated caller may, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kedge.api.validation.error_list import ErrorList
from kedge.api.wellknown import AUTHENTICATION_GROUP, AUTHORIZATION_GROUP
from kedge.env import Env
from kedge.errors import BadRequest, Invalid, Unauthorized
from kedge.server.http.access import (
    DISCOVERY_PATHS,
    MASTERS,
    ROLES,
    Attributes,
    Caller,
    allows,
    allows_path,
    caller_of_token,
    check_allowed,
)
from kedge.server.http.routes import ResourcePath
from kedge.server.service import Service
from kedge.server.service.account_tokens import ISSUER

_EVERY = "*"
_SPECS = ("resourceAttributes", "nonResourceAttributes")


def is_review(path: ResourcePath) -> bool:
    return (path.group, path.version, path.resource) in _ANSWERS and not path.name


def answer_review(path: ResourcePath, body: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """The review with its status.

    Raises:
        BadRequest: the body is of another kind, or its spec is no object.
        Invalid: an access review has not exactly one of resource and path.
    """
    kind, status = _ANSWERS[path.group, path.version, path.resource]
    api_version = f"{path.group}/{path.version}"
    sent = body.get("apiVersion"), body.get("kind")
    if any(sent) and sent != (api_version, kind):
        raise BadRequest(f"the object is a {sent[1]} of {sent[0]}, but was sent as a {kind} of {api_version}")
    spec = body.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise BadRequest("spec is an object")
    return {
        "kind": kind,
        "apiVersion": api_version,
        "metadata": body.get("metadata") or {"creationTimestamp": None},
        **({"spec": spec} if "spec" in body else {}),
        "status": status(caller, spec),
    }


def _identity(caller: Caller, spec: Mapping[str, Any]) -> dict[str, Any]:
    del spec
    return {"userInfo": user_info(caller)}


def user_info(caller: Caller) -> dict[str, Any]:
    """A caller as Kubernetes describes it."""
    info: dict[str, Any] = {"username": caller.user, "groups": list(caller.groups)}
    if caller.uid:
        info["uid"] = caller.uid
    if caller.extra:
        info["extra"] = {name: [value] for name, value in caller.extra}
    return info


def is_token_review(path: ResourcePath) -> bool:
    return (path.group, path.version, path.resource, path.name) == (AUTHENTICATION_GROUP, "v1", "tokenreviews", "")


async def answer_token_review(body: Mapping[str, Any], caller: Caller, service: Service, env: Env) -> dict[str, Any]:
    """Whether a token is valid, for servers other than this one.

    Raises:
        Forbidden: the caller may not ask.
    """
    check_allowed(caller, Attributes("create", AUTHENTICATION_GROUP, "tokenreviews", "", "", ""))
    spec = body.get("spec") or {}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("token"), str):
        raise BadRequest("spec.token is missing: send the token to review")
    audiences = [str(each) for each in spec.get("audiences") or ()]
    status: dict[str, Any]
    try:
        found = await caller_of_token(spec["token"], service, env, audiences)
        status = {"authenticated": True, "user": user_info(found), "audiences": audiences or [ISSUER]}
    except Unauthorized as error:
        status = {"user": {}, "error": error.message}
    return {
        "kind": "TokenReview",
        "apiVersion": f"{AUTHENTICATION_GROUP}/v1",
        "metadata": body.get("metadata") or {"creationTimestamp": None},
        "spec": spec,
        "status": status,
    }


def _access(caller: Caller, spec: Mapping[str, Any]) -> dict[str, Any]:
    given = [name for name in _SPECS if spec.get(name)]
    if len(given) != 1 or not isinstance(wanted := spec[given[0]], Mapping):
        errors = ErrorList()
        errors.invalid("spec.resourceAttributes", given, "exactly one of nonResourceAttributes or resourceAttributes")
        raise Invalid(f'SelfSubjectAccessReview "" is invalid: {errors.found[0]}', errors=errors.found)
    names = ("verb", "group", "resource", "subresource", "namespace", "name")
    if given[0] == "resourceAttributes":
        allowed = allows(caller, Attributes(*(str(wanted.get(name) or "") for name in names)))
    else:
        allowed = allows_path(caller, str(wanted.get("path") or "").encode())
    return {"allowed": allowed}


def _rules(caller: Caller, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Every rule that holds for the caller. Roles are fixed and the same in every namespace."""
    if not spec.get("namespace"):
        raise BadRequest("no namespace on request: set spec.namespace")
    if MASTERS in caller.groups:
        rules = [_rule((_EVERY,), _EVERY, (_EVERY,))]
        paths = [_EVERY]
    else:
        roles = [role for group in caller.groups for role in ROLES.get(group, ())]
        rules = [_rule(sorted(role.verbs), _EVERY, sorted(role.resources)) for role in roles]
        for group, _, plural in _ANSWERS:
            rules.append(_rule(("create",), group, (plural,)))
        paths = [each.decode() for each in sorted(DISCOVERY_PATHS)]
    return {
        "resourceRules": rules,
        "nonResourceRules": [
            {"verbs": [_EVERY] if MASTERS in caller.groups else ["get"], "nonResourceURLs": paths},
        ],
        "incomplete": False,
    }


def _rule(verbs: Any, group: str, resources: Any) -> dict[str, Any]:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


Answer = Callable[[Caller, Mapping[str, Any]], dict[str, Any]]
_ANSWERS: dict[tuple[str, str, str], tuple[str, Answer]] = {
    (AUTHENTICATION_GROUP, "v1", "selfsubjectreviews"): ("SelfSubjectReview", _identity),
    (AUTHORIZATION_GROUP, "v1", "selfsubjectaccessreviews"): ("SelfSubjectAccessReview", _access),
    (AUTHORIZATION_GROUP, "v1", "selfsubjectrulesreviews"): ("SelfSubjectRulesReview", _rules),
}
"""Kind and answer of each review."""
REVIEWS = (
    *((group, version, kind, plural) for (group, version, plural), (kind, _) in _ANSWERS.items()),
    (AUTHENTICATION_GROUP, "v1", "TokenReview", "tokenreviews"),
)
"""Group, version, kind and plural of each review, for discovery."""
