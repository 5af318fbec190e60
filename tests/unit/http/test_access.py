"""Impersonation: an administrator acts as another user, and no other caller may."""

from __future__ import annotations

import pytest

from kedge.api.requests import BoundObject
from kedge.errors import BadRequest, Forbidden
from kedge.server.http.access import (
    AGENTS,
    AUTHENTICATED,
    MASTERS,
    Attributes,
    Caller,
    acting_caller,
    allows,
    check_token_allowed,
)
from kedge.server.http.routes import ResourcePath

ADMIN = Caller("admin", (MASTERS, AUTHENTICATED))
GET_PODS = Attributes("get", "", "pods", "", "default", "")


def test_an_administrator_acts_as_another_user_without_its_own_rights() -> None:
    caller = acting_caller(ADMIN, {b"impersonate-user": b"someone"})
    assert caller == Caller("someone", (AUTHENTICATED,))
    assert not allows(caller, GET_PODS)


def test_groups_are_impersonated_with_a_user() -> None:
    headers = {b"impersonate-user": b"s", b"impersonate-group": b"kedge:schedulers, other"}
    caller = acting_caller(ADMIN, headers)
    assert caller.groups == ("kedge:schedulers", "other", AUTHENTICATED)
    assert allows(caller, GET_PODS)
    with pytest.raises(BadRequest):
        acting_caller(ADMIN, {b"impersonate-group": MASTERS.encode()})


def test_other_callers_may_not_impersonate() -> None:
    with pytest.raises(Forbidden, match="cannot impersonate"):
        acting_caller(Caller("agent", ("kedge:agents",)), {b"impersonate-user": b"admin"})


def test_without_the_header_a_caller_is_itself() -> None:
    assert acting_caller(ADMIN, {}) is ADMIN


# -- tokens of ServiceAccounts -------------------------------------------------------------------------


def test_an_agent_gets_tokens_for_pods_alone() -> None:
    agent = Caller("agent", (AGENTS, AUTHENTICATED))
    path = ResourcePath("", "v1", "serviceaccounts", "default", "admin", "token")
    check_token_allowed(agent, path, BoundObject(kind="Pod", name="web-0"))
    for bound in (None, BoundObject(kind="Secret", name="s")):
        with pytest.raises(Forbidden, match="bind it to a Pod"):
            check_token_allowed(agent, path, bound)
        check_token_allowed(ADMIN, path, bound)


def test_an_account_may_neither_make_nor_review_tokens_nor_read_anything() -> None:
    account = Caller("system:serviceaccount:default:default", ("system:serviceaccounts", AUTHENTICATED), "uid")
    for verb, group, resource, subresource in (
        ("create", "", "serviceaccounts", "token"),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
        ("get", "", "secrets", ""),
        ("list", "", "pods", ""),
    ):
        assert not allows(account, Attributes(verb, group, resource, subresource, "default", ""))
