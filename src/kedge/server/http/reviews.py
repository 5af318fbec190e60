"""Reviews: kinds that are answered and never stored. A caller asks for identities and permissions.

`kubectl auth whoami` and `kubectl auth can-i` send them. By default every authenticated caller may ask about
itself. Questions about others and their tokens need a role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from kedge.api.access import Attributes, Caller, node_of
from kedge.api.validation.error_list import ErrorList
from kedge.api.wellknown import AUTHENTICATION_GROUP, AUTHORIZATION_GROUP
from kedge.env import Env
from kedge.errors import BadRequest, Invalid, NotFound, Unauthorized
from kedge.server.http.access import caller_of_token
from kedge.server.http.bodies import read_options
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.routes import ResourcePath, attributes_of
from kedge.server.service import Service
from kedge.server.service.account_tokens import ISSUER

_SPECS = ("resourceAttributes", "nonResourceAttributes")
_ATTRIBUTES = ("verb", "group", "resource", "subresource", "namespace", "name")
Spec = Mapping[str, Any]


class ReviewKind(NamedTuple):
    """One kind of review, for discovery and routing."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = False


REVIEWS = (
    ReviewKind(AUTHENTICATION_GROUP, "v1", "SelfSubjectReview", "selfsubjectreviews"),
    ReviewKind(AUTHENTICATION_GROUP, "v1", "TokenReview", "tokenreviews"),
    ReviewKind(AUTHORIZATION_GROUP, "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", namespaced=True),
    ReviewKind(AUTHORIZATION_GROUP, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ReviewKind(AUTHORIZATION_GROUP, "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ReviewKind(AUTHORIZATION_GROUP, "v1", "SubjectAccessReview", "subjectaccessreviews"),
)
_BY_PATH = {(each.group, each.version, each.plural): each for each in REVIEWS}


def is_review(path: ResourcePath) -> bool:
    return (path.group, path.version, path.resource) in _BY_PATH and not path.name


class Reviews:
    """Answers reviews for one service."""

    def __init__(self, service: Service, env: Env) -> None:
        self._service = service
        self._env = env
        self._answers: dict[str, Callable[[Caller, Spec, str], Awaitable[dict[str, Any]]]] = {
            "SelfSubjectReview": self._identity,
            "TokenReview": self._token,
            "SelfSubjectAccessReview": self._own_access,
            "SelfSubjectRulesReview": self._own_rules,
            "SubjectAccessReview": self._access,
            "LocalSubjectAccessReview": self._local_access,
        }

    async def answer(self, path: ResourcePath, request: HttpRequest, caller: Caller) -> dict[str, Any]:
        """The review with its status.

        Raises:
            Forbidden: the caller may not ask.
            BadRequest: the body is of another kind, or its spec is no object.
            Invalid: an access review has not exactly one of resource and path, or no user.
        """
        review = _BY_PATH[path.group, path.version, path.resource]
        if bool(path.namespace) != review.namespaced:
            raise NotFound("the server could not find the requested resource")
        await self._service.access.check(caller, attributes_of(path, "create"))
        body = read_options(request, self._env.limits)
        api_version = f"{review.group}/{review.version}"
        sent = body.get("apiVersion"), body.get("kind")
        if any(sent) and sent != (api_version, review.kind):
            raise BadRequest(
                f"the object is a {sent[1]} of {sent[0]}, but was sent as a {review.kind} of {api_version}"
            )
        spec = body.get("spec") or {}
        if not isinstance(spec, Mapping):
            raise BadRequest("spec is an object")
        return {
            "kind": review.kind,
            "apiVersion": api_version,
            "metadata": body.get("metadata") or {"creationTimestamp": None},
            **({"spec": spec} if "spec" in body else {}),
            "status": await self._answers[review.kind](caller, spec, path.namespace),
        }

    # -- identities --------------------------------------------------------------------------------

    async def _identity(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        del spec, namespace
        return {"userInfo": user_info(caller)}

    async def _token(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        """Whether a token is valid, for servers other than this one."""
        del caller, namespace
        if not isinstance(spec.get("token"), str):
            raise BadRequest("spec.token is missing: send the token to review")
        audiences = [str(each) for each in spec.get("audiences") or ()]
        try:
            found = await caller_of_token(spec["token"], self._service, self._env, audiences)
        except Unauthorized as error:
            return {"user": {}, "error": error.message}
        return {"authenticated": True, "user": user_info(found), "audiences": audiences or [ISSUER]}

    # -- permissions -------------------------------------------------------------------------------

    async def _own_access(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        del namespace
        return await self._decide("SelfSubjectAccessReview", caller, spec)

    async def _access(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        del caller, namespace
        return await self._decide("SubjectAccessReview", _subject(spec), spec)

    async def _local_access(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        del caller
        named = _part(spec, "resourceAttributes").get("namespace")
        if named != namespace:
            raise _invalid(
                "LocalSubjectAccessReview", "spec.resourceAttributes.namespace", named, "must match metadata.namespace"
            )
        return await self._decide("LocalSubjectAccessReview", _subject(spec), spec)

    async def _decide(self, kind: str, caller: Caller, spec: Spec) -> dict[str, Any]:
        given = [name for name in _SPECS if spec.get(name)]
        if len(given) != 1:
            why = "exactly one of nonResourceAttributes or resourceAttributes"
            raise _invalid(kind, "spec.resourceAttributes", given, why)
        wanted = _part(spec, given[0])
        access = self._service.access
        if given[0] == "nonResourceAttributes":
            return {"allowed": access.allows_path(caller, str(wanted.get("verb")), str(wanted.get("path") or ""))}
        selector = str(_part(wanted, "fieldSelector").get("rawSelector") or "")
        attributes = Attributes(*(str(wanted.get(name) or "") for name in _ATTRIBUTES))
        attributes = attributes._replace(field_selector=selector)
        return {"allowed": await access.allows(caller, attributes)}

    async def _own_rules(self, caller: Caller, spec: Spec, namespace: str) -> dict[str, Any]:
        """Every rule that holds for the caller in a namespace."""
        del namespace
        if not isinstance(spec.get("namespace"), str) or not spec["namespace"]:
            raise BadRequest("no namespace on request: set spec.namespace")
        rules = self._service.access.rules_of(caller, spec["namespace"])
        found: dict[str, Any] = {
            "resourceRules": msgspec.to_builtins([rule for rule in rules if not rule.non_resource_urls]),
            "nonResourceRules": msgspec.to_builtins([rule for rule in rules if rule.non_resource_urls]),
            "incomplete": False,
        }
        if node_of(caller.user, caller.groups):
            why = "rights of an agent to its own node and pods are not listed: ask with kubectl auth can-i"
            found |= {"incomplete": True, "evaluationError": why}
        return found


def user_info(caller: Caller) -> dict[str, Any]:
    """A caller as Kubernetes describes it."""
    info: dict[str, Any] = {"username": caller.user, "groups": list(caller.groups)}
    if caller.uid:
        info["uid"] = caller.uid
    if caller.extra:
        extra: dict[str, list[str]] = {}
        for name, value in caller.extra:
            extra.setdefault(name, []).append(value)
        info["extra"] = extra
    return info


def _subject(spec: Spec) -> Caller:
    """The user that a review is about."""
    groups = spec.get("groups") or ()
    user = str(spec.get("user") or "")
    if not isinstance(groups, list | tuple) or not all(isinstance(each, str) for each in groups):
        raise BadRequest("spec.groups is a list of texts")
    if not user and not groups:
        raise _invalid("SubjectAccessReview", "spec.user", user, "at least one of user or group must be specified")
    return Caller(user, tuple(groups))


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name) or {}
    if not isinstance(found, Mapping):
        raise BadRequest(f"{name} is an object")
    return found


def _invalid(kind: str, path: str, value: Any, why: str) -> Invalid:
    errors = ErrorList()
    errors.invalid(path, value, why)
    return Invalid(f'{kind} "" is invalid: {errors.found[0]}', errors=errors.found)
