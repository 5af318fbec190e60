"""Tokens of ServiceAccounts: they end with their time, their account and their pod, and are for one audience."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.objects import NAMESPACE, NODE, World, asynchronous, make_world, node, pod, pod_key

from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, BoundObject, DeleteOptions
from kedge.errors import BadRequest, Conflict, Forbidden, Invalid, MethodNotAllowed, NotFound, Unauthorized
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.http.token_keys import SigningKeys
from kedge.server.service.account_tokens import ISSUER

ACCOUNT = KINDS.of_key_kind("ServiceAccount")
DEFAULT = Key("ServiceAccount", "default", "default")
KEYS = SigningKeys([ec.generate_private_key(ec.SECP256R1())])


async def signing_world(limits: Limits | None = None) -> World:
    return await make_world(limits=limits, token_keys=KEYS)


async def pod_token(world: World, **request: Any) -> str:
    """A token bound to the pod web-0, which runs on node-a."""
    await world.service.create(NODE, node())
    made = await world.create(pod())
    await world.service.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
    bound = BoundObject(kind="Pod", name="web-0", uid=made.uid)
    return (await world.service.request_token(DEFAULT, bound=bound, **request)).token


@asynchronous
async def test_a_namespace_has_its_default_account_from_the_revision_of_its_creation() -> None:
    world = await make_world()
    made = (await world.service.create(NAMESPACE, {"metadata": {"name": "team-a"}})).object
    account = await world.get(Key("ServiceAccount", "team-a", "default"))
    assert account.created == made.revision
    assert account.uid not in ("", made.uid)
    assert account.uid != (await world.get(DEFAULT)).uid


@asynchronous
async def test_a_token_of_a_pod_is_its_account_with_pod_and_node() -> None:
    world = await signing_world()
    found = await world.service.identify(await pod_token(world))
    assert found.user == "system:serviceaccount:default:default"
    assert found.groups == ("system:serviceaccounts", "system:serviceaccounts:default")
    assert found.uid == (await world.get(DEFAULT)).uid
    prefix = "authentication.kubernetes.io/"
    assert found.extra[f"{prefix}pod-name"] == "web-0"
    assert found.extra[f"{prefix}pod-uid"] == (await world.get(pod_key())).uid
    assert found.extra[f"{prefix}node-name"] == "node-a"
    assert found.extra[f"{prefix}credential-id"].startswith("JTI=")


@asynchronous
async def test_a_token_ends_with_its_pod() -> None:
    world = await signing_world()
    token = await pod_token(world)
    await world.service.delete(pod_key(), DeleteOptions(grace_s=30))
    await world.service.identify(token)  # the pod is stopping, and may use its token meanwhile
    world.clock.advance(30 + 61)
    with pytest.raises(Unauthorized, match="being deleted"):
        await world.service.identify(token)
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    with pytest.raises(Unauthorized, match="is gone"):
        await world.service.identify(token)
    await world.create(pod())
    with pytest.raises(Unauthorized, match="is gone"):
        await world.service.identify(token)  # another pod of the same name


@asynchronous
async def test_a_token_ends_with_its_account_and_a_new_default_account_is_made_on_request() -> None:
    world = await signing_world()
    issued = await world.service.request_token(DEFAULT)
    await world.service.identify(issued.token)
    await world.service.delete(DEFAULT)
    with pytest.raises(Unauthorized, match="is gone"):
        await world.service.identify(issued.token)
    again = await world.service.request_token(DEFAULT)
    await world.service.identify(again.token)
    with pytest.raises(Unauthorized, match="is gone"):
        await world.service.identify(issued.token)
    with pytest.raises(NotFound):
        await world.service.request_token(Key("ServiceAccount", "default", "none"))


@asynchronous
async def test_a_token_ends_with_its_time_which_is_bounded() -> None:
    world = await signing_world()
    issued = await world.service.request_token(DEFAULT, expiration_s=600)
    assert issued.expires - world.env.now() == timedelta(seconds=600)
    world.clock.advance(599)
    await world.service.identify(issued.token)
    world.clock.advance(1)
    with pytest.raises(Unauthorized, match="expired"):
        await world.service.identify(issued.token)
    with pytest.raises(Invalid, match="less than 600 seconds"):
        await world.service.request_token(DEFAULT, expiration_s=599)
    longest = await world.service.request_token(DEFAULT, expiration_s=10**10)
    assert longest.expires - world.env.now() == timedelta(seconds=Limits().token_s_max)


@asynchronous
async def test_a_token_of_a_server_whose_clock_is_ahead_is_accepted_within_a_minute() -> None:
    world = await signing_world()
    issued = await world.service.request_token(DEFAULT)
    world.clock.advance(-50)
    await world.service.identify(issued.token)
    world.clock.advance(-20)
    with pytest.raises(Unauthorized, match="not valid yet"):
        await world.service.identify(issued.token)


@asynchronous
async def test_a_token_is_for_its_audiences_alone() -> None:
    world = await signing_world()
    vault = (await world.service.request_token(DEFAULT, audiences=("vault",))).token
    assert (await world.service.identify(vault, ("other", "vault"))).audiences == ("vault",)
    with pytest.raises(Unauthorized, match="the token is for vault"):
        await world.service.identify(vault)
    own = (await world.service.request_token(DEFAULT)).token
    with pytest.raises(Unauthorized, match="get one for vault"):
        await world.service.identify(own, ("vault",))
    assert (await world.service.identify(own)).audiences == (ISSUER,)


@asynchronous
async def test_a_token_is_bound_only_to_an_object_that_is_there_and_fits() -> None:
    world = await signing_world()
    made = await world.create(pod(serviceAccountName="builder"))
    with pytest.raises(BadRequest, match="different serviceaccount"):
        await world.service.request_token(DEFAULT, bound=BoundObject(kind="Pod", name="web-0", uid=made.uid))
    await world.service.create(ACCOUNT, {"metadata": {"name": "builder"}}, namespace="default")
    builder = Key("ServiceAccount", "default", "builder")
    await world.service.request_token(builder, bound=BoundObject(kind="Pod", name="web-0", uid=made.uid))
    with pytest.raises(Conflict, match="does not match"):
        await world.service.request_token(builder, bound=BoundObject(kind="Pod", name="web-0", uid="another"))
    with pytest.raises(NotFound):
        await world.service.request_token(builder, bound=BoundObject(kind="Pod", name="none"))
    with pytest.raises(BadRequest, match="ConfigMap"):
        await world.service.request_token(builder, bound=BoundObject(kind="ConfigMap", name="x"))


@asynchronous
async def test_a_token_bound_to_a_secret_ends_with_it() -> None:
    world = await signing_world()
    secret = Key("Secret", "default", "session")
    await world.service.create(KINDS.of_key_kind("Secret"), {"metadata": {"name": "session"}}, namespace="default")
    issued = await world.service.request_token(DEFAULT, bound=BoundObject(kind="Secret", name="session"))
    await world.service.identify(issued.token)
    await world.service.delete(secret)
    with pytest.raises(Unauthorized, match="is gone"):
        await world.service.identify(issued.token)


@asynchronous
async def test_a_token_with_a_good_signature_and_odd_claims_is_refused() -> None:
    world = await signing_world()
    now_s = world.env.now().timestamp()
    whole = {"iss": ISSUER, "aud": [ISSUER], "nbf": now_s, "exp": now_s + 60, "jti": "x"}
    for claims in (
        {},
        {"iss": "https://another"},
        whole,
        {**whole, "kubernetes.io": {"namespace": "default"}},
        {**whole, "kubernetes.io": None},
        {**whole, "exp": "soon"},
        {**whole, "aud": None},
    ):
        with pytest.raises(Unauthorized):
            await world.service.identify(KEYS.sign(claims))


@asynchronous
async def test_a_server_without_a_key_signs_nothing_and_accepts_nothing() -> None:
    world = await signing_world()
    token = (await world.service.request_token(DEFAULT)).token
    keyless = await make_world()
    with pytest.raises(MethodNotAllowed, match="no key"):
        await keyless.service.request_token(DEFAULT)
    with pytest.raises(Unauthorized):
        await keyless.service.identify(token)


@asynchronous
async def test_a_namespace_that_is_being_terminated_gets_no_new_account() -> None:
    world = await signing_world()
    await world.service.create(NAMESPACE, {"metadata": {"name": "team-a"}})
    account = Key("ServiceAccount", "team-a", "default")
    await world.service.delete(Key("Namespace", "", "team-a"))
    await world.service.delete(account)
    with pytest.raises(Forbidden, match="terminated"):
        await world.service.request_token(account)
