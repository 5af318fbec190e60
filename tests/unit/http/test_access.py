"""Impersonation: an administrator acts as another user, and no other caller may."""

from __future__ import annotations

import pytest

from kedge.errors import BadRequest, Forbidden
from kedge.server.http.access import AUTHENTICATED, MASTERS, Attributes, Caller, acting_caller, allows

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
