"""Tokens of ServiceAccounts: made for a request, and checked against the objects that they name.

A token is signed and never stored. It ends with its time, with its account, and with the object that it is bound to:
these are read at each check, so a token of a deleted pod is refused by the next request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from kedge.api.objects import Object
from kedge.api.requests import Get, IssuedToken, RequestToken
from kedge.api.views import PodView
from kedge.api.views.accounts import account_of
from kedge.api.wellknown import (
    DEFAULT_ACCOUNT,
    KUBERNETES_DOMAIN,
    NODE_KIND,
    POD_KIND,
    SECRET_KIND,
    SERVICE_ACCOUNT_KIND,
    TOKEN_EXTRA_PREFIX,
)
from kedge.errors import (
    BadRequest,
    Conflict,
    FieldError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)
from kedge.keys import Key
from kedge.server.service import reads
from kedge.server.service.access.write_checks import check_token_request
from kedge.server.service.core import Core
from kedge.server.service.credentials.default_accounts import ensure_default_account

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
"""Issuer of every token, and the audience of the API server, as in Kubernetes."""
_BOUND: Final = (POD_KIND, SECRET_KIND, NODE_KIND)
"""Kinds that a token may be bound to."""
_LEAVING_S: Final = 60.0
"""A token is valid so long after the grace of its pod has passed: the processes may still be stopping."""
_SKEW_S: Final = 60.0
"""A token may begin so much later than now: clocks of API servers differ."""


class TokenKeys(Protocol):
    """Signs claims, and checks signatures."""

    def sign(self, claims: Mapping[str, Any]) -> str: ...

    def verify(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a token that one of the keys has signed; None for every other text."""


class TokenIdentity(NamedTuple):
    """The user behind a token."""

    user: str
    groups: tuple[str, ...]
    uid: str
    extra: Mapping[str, str]
    audiences: tuple[str, ...]


# -- requests ----------------------------------------------------------------------------------------


async def request_token(core: Core, request: RequestToken) -> IssuedToken:
    """Sign a token for a ServiceAccount. The `default` account is made again if it was deleted."""
    keys = core.token_keys
    if keys is None:
        raise MethodNotAllowed("this server has no key for tokens: run it as kedge server or kedge up")
    limits = core.env.limits
    if request.expiration_s < limits.token_s_min:
        error = FieldError(
            "spec.expirationSeconds",
            "FieldValueInvalid",
            f"Invalid value: {request.expiration_s}: may not specify a duration less than {limits.token_s_min:g}"
            " seconds",
        )
        raise Invalid(f'TokenRequest "{request.key.name}" is invalid: {error}', key=request.key, errors=[error])
    account = await _account(core, request.key)
    private: dict[str, Any] = {
        "namespace": request.key.namespace,
        "serviceaccount": {"name": request.key.name, "uid": account.uid},
    }
    private |= await _bound_claims(core, request)
    now = core.env.now()
    begins_s = math.floor(now.timestamp())
    ends_s = begins_s + math.ceil(min(float(request.expiration_s), limits.token_s_max))
    claims = {
        "aud": list(request.audiences or (ISSUER,)),
        "exp": ends_s,
        "iat": begins_s,
        "iss": ISSUER,
        "jti": core.env.new_uid(),
        KUBERNETES_DOMAIN: private,
        "nbf": begins_s,
        "sub": f"system:serviceaccount:{request.key.namespace}:{request.key.name}",
    }
    core.tokens.labels("issued").inc()
    return IssuedToken(keys.sign(claims), datetime.fromtimestamp(ends_s, UTC))


async def _account(core: Core, key: Key) -> Object:
    try:
        return await reads.get(core, Get(key))
    except NotFound:
        if key.name != DEFAULT_ACCOUNT:
            raise
    await ensure_default_account(core, key.namespace)
    return await reads.get(core, Get(key))


async def _bound_claims(core: Core, request: RequestToken) -> dict[str, Any]:
    """Claims about the object that the token is bound to; none for a token that ends with its account."""
    bound = request.bound
    if bound is None or bound.kind != POD_KIND:
        check_token_request(core, request.options, request.key.name, None)
    if bound is None:
        return {}
    if bound.kind not in _BOUND:
        raise BadRequest(f"a token cannot be bound to a {bound.kind}: bind it to a Pod, a Secret or a Node")
    namespace = "" if bound.kind == NODE_KIND else request.key.namespace
    found = await reads.get(core, Get(Key(bound.kind, namespace, bound.name)))
    if bound.uid and bound.uid != found.uid:
        raise Conflict(
            f"the UID in the bound object reference ({bound.uid}) does not match the UID in record ({found.uid})."
            " The object might have been deleted and then recreated",
            key=found.key,
        )
    claims: dict[str, Any] = {bound.kind.lower(): {"name": bound.name, "uid": found.uid}}
    if bound.kind == POD_KIND:
        pod = found.as_view(PodView)
        check_token_request(core, request.options, request.key.name, pod)
        if account_of(pod.spec) != request.key.name:
            raise BadRequest(
                f'cannot bind token for serviceaccount "{request.key.name}" to pod running with different'
                f" serviceaccount name: it has {account_of(pod.spec)!r}"
            )
        if pod.spec.node_name:
            node = await _find(core, Key(NODE_KIND, "", pod.spec.node_name))
            claims["node"] = {"name": pod.spec.node_name, **({} if node is None else {"uid": node.uid})}
    return claims


async def _find(core: Core, key: Key) -> Object | None:
    with suppress(NotFound):
        return await reads.get(core, Get(key))
    return None


# -- checks ------------------------------------------------------------------------------------------


async def identify(core: Core, token: str, audiences: Sequence[str] = ()) -> TokenIdentity:
    """The user behind a token for one of `audiences`; for this API server if there are none.

    Raises:
        Unauthorized: the token is not of this cluster, has ended, or is for others.
    """
    claims = None if core.token_keys is None else core.token_keys.verify(token)
    try:
        if claims is None or claims["iss"] != ISSUER:
            raise Unauthorized("the token is not signed by this cluster: get a new one")
        wanted = tuple(audiences) or (ISSUER,)
        matching = tuple(each for each in wanted if each in claims["aud"])
        if not matching:
            raise Unauthorized(f"the token is for {', '.join(claims['aud'])}: get one for {', '.join(wanted)}")
        now_s = core.env.now().timestamp()
        if not claims["nbf"] - _SKEW_S <= now_s < claims["exp"]:
            raise Unauthorized("the token has expired, or is not valid yet: get a new one")
        private = claims[KUBERNETES_DOMAIN]
        await _check_objects(core, private)
        account, namespace = private["serviceaccount"], private["namespace"]
        core.tokens.labels("accepted").inc()
        return TokenIdentity(
            f"system:serviceaccount:{namespace}:{account['name']}",
            ("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
            account["uid"],
            _extra(claims, private),
            matching,
        )
    except (KeyError, TypeError) as error:
        raise Unauthorized("the token lacks claims of a service account: get a new one") from error
    except Unauthorized:
        core.tokens.labels("refused").inc()
        raise


async def _check_objects(core: Core, private: Mapping[str, Any]) -> None:
    """Check that the account and the bound object are those of the token, and are still there."""
    namespace = private["namespace"]
    named = {SERVICE_ACCOUNT_KIND: private["serviceaccount"]}
    bound = next((kind for kind in _BOUND if kind.lower() in private), None)  # a pod's token names its node too
    if bound is not None:
        named[bound] = private[bound.lower()]
    keys = [Key(kind, "" if kind == NODE_KIND else namespace, claim["name"]) for kind, claim in named.items()]
    reading = await core.store.get(keys)
    for entry, key, claim in zip(reading.entries, keys, named.values(), strict=True):
        found = None if entry is None else core.object_of(entry)
        if found is None or found.uid != claim["uid"]:
            raise Unauthorized(f"the token has ended with {key}, which is gone: get a new one")
        ends = found.metadata.deletion_timestamp
        if ends is not None and ends + timedelta(seconds=_LEAVING_S) < core.env.now():
            raise Unauthorized(f"the token has ended with {key}, which is being deleted: get a new one")


def _extra(claims: Mapping[str, Any], private: Mapping[str, Any]) -> dict[str, str]:
    """More about the user, under the names of Kubernetes."""
    extra = {f"{TOKEN_EXTRA_PREFIX}credential-id": f"JTI={claims['jti']}"}
    for kind in ("node", "pod"):
        if kind in private:
            extra[f"{TOKEN_EXTRA_PREFIX}{kind}-name"] = private[kind]["name"]
            if "uid" in private[kind]:
                extra[f"{TOKEN_EXTRA_PREFIX}{kind}-uid"] = private[kind]["uid"]
    return extra
