"""The authorizer: bindings to users, groups and accounts, aggregation, and changes that count at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.kit.access import ADA, ADMIN, account, binding, guarded_world, role, rule, wants
from tests.objects import asynchronous, make_world

from kedge.api.access import AUTHENTICATED, Caller
from kedge.api.wellknown import CLUSTER_ROLE_KIND, ROLE_BINDING_KIND
from kedge.keys import Key
from kedge.limits import Limits

GET_POD = wants("get", "pods", "default", "web")


@asynchronous
async def test_a_role_counts_in_its_namespace_from_the_reply_of_its_binding_on() -> None:
    world = await guarded_world()
    allows = world.service.access.allows
    await world.create(role("reader", rule("get list", "pods"), namespace="default"))
    assert not await allows(ADA, GET_POD)
    await world.create(binding("readers", "Role/reader", "User/ada", namespace="default"))
    assert await allows(ADA, GET_POD)
    assert not await allows(ADA, GET_POD._replace(verb="delete"))
    assert not await allows(ADA, GET_POD._replace(namespace="other"))
    assert not await allows(ADA, GET_POD._replace(namespace=""))
    assert not await allows(Caller("bob", (AUTHENTICATED,)), GET_POD)
    await world.service.delete(Key(ROLE_BINDING_KIND, "default", "readers"))
    assert not await allows(ADA, GET_POD)


@asynchronous
async def test_a_change_of_a_role_counts_at_once() -> None:
    world = await guarded_world()
    await world.create(role("reader", rule("get", "pods")))
    await world.create(binding("readers", "ClusterRole/reader", "User/ada"))
    assert await world.service.access.allows(ADA, GET_POD)
    await world.service.patch(Key(CLUSTER_ROLE_KIND, "", "reader"), {"rules": [rule("get", "nodes")]})
    assert not await world.service.access.allows(ADA, GET_POD)
    assert await world.service.access.allows(ADA, wants("get", "nodes", name="n"))


@asynchronous
async def test_groups_and_accounts_are_bound_like_users() -> None:
    world = await guarded_world()
    await world.create(role("reader", rule("get", "pods")))
    subjects = ("Group/people", "ServiceAccount/default/robot")
    await world.create(binding("readers", "ClusterRole/reader", *subjects, namespace="default"))
    allows = world.service.access.allows
    assert await allows(Caller("eve", ("people", AUTHENTICATED)), GET_POD)
    assert await allows(account("robot"), GET_POD)
    assert not await allows(account("robot", "other"), GET_POD)
    assert not await allows(Caller("people", (AUTHENTICATED,)), GET_POD)
    assert not await allows(Caller("eve", ("robot", AUTHENTICATED)), GET_POD)


@asynchronous
async def test_names_of_objects_narrow_a_rule_and_lists_need_all_of_them() -> None:
    world = await guarded_world()
    await world.create(role("one", rule("get list update", "pods", resourceNames=["web", "db"])))
    await world.create(binding("ones", "ClusterRole/one", "User/ada"))
    allows = world.service.access.allows
    for name, expected in (("web", True), ("db", True), ("x", False), ("", False)):
        assert await allows(ADA, GET_POD._replace(name=name)) is expected
    assert not await allows(ADA, wants("list", "pods", "default"))


@asynchronous
async def test_a_binding_to_a_role_that_does_not_exist_grants_nothing_until_it_does() -> None:
    world = await guarded_world()
    await world.create(binding("early", "ClusterRole/later", "User/ada"))
    assert not await world.service.access.allows(ADA, GET_POD)
    await world.create(role("later", rule("get", "pods")))
    assert await world.service.access.allows(ADA, GET_POD)


@asynchronous
async def test_administrators_may_everything_and_others_nothing_before_the_rules_are_read() -> None:
    world = await make_world()
    assert await world.service.access.allows(ADMIN, wants("delete", "anything"))
    assert world.service.access.allows_path(ADMIN, "get", "/metrics")
    assert not await world.service.access.allows(ADA, GET_POD)


@asynchronous
async def test_an_aggregating_role_has_the_rules_of_all_that_it_selects() -> None:
    world = await guarded_world()
    selects: dict[str, Any] = {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]}}
    await world.create(role("all", rule("*", "secrets"), **selects))
    await world.create(binding("all", "ClusterRole/all", "User/ada"))
    allows = world.service.access.allows
    assert not await allows(ADA, wants("get", "secrets", "default", "s"))  # its own rules do not count
    await world.create(role("part", rule("get", "pods"), metadata={"labels": {"to": "all"}}))
    assert await allows(ADA, GET_POD)
    both = [{"matchLabels": {"to": "nested"}}, {"matchLabels": {"to": "all"}}]
    nested: dict[str, Any] = {"aggregationRule": {"clusterRoleSelectors": both}}
    await world.create(role("nested", metadata={"labels": {"to": "all"}}, **nested))
    await world.create(role("deep", rule("get", "nodes"), metadata={"labels": {"to": "nested"}}))
    assert await allows(ADA, wants("get", "nodes", name="n"))
    await asyncio.sleep(0.3)
    stored = (await world.get(Key(CLUSTER_ROLE_KIND, "", "all"))).edit()
    assert stored["rules"] == [rule("get", "pods"), rule("get", "nodes")]
    await world.service.delete(Key(CLUSTER_ROLE_KIND, "", "part"))
    assert not await allows(ADA, GET_POD)


@asynchronous
async def test_remembered_answers_are_bounded_and_stay_right() -> None:
    world = await guarded_world(limits=replace(Limits(), access_answers_max=8, access_users_max=2))
    await world.create(role("reader", rule("get", "pods")))
    await world.create(binding("readers", "ClusterRole/reader", "Group/people"))
    access = world.service.access
    for n in range(50):
        user = Caller(f"user-{n % 5}", ("people",) if n % 2 else ())
        assert await access.allows(user, GET_POD._replace(namespace=f"ns-{n}")) is bool(n % 2)
        assert access._answers <= 8
        assert len(access._permissions) <= 2
    long = "x" * 1000
    await access.allows(ADA, GET_POD._replace(namespace=long))
    await access.allows(Caller(long, ()), GET_POD)
    assert not any(long in str(key) + str(list(each.answers)) for key, each in access._permissions.items())


@asynchronous
async def test_rules_are_read_again_after_a_broken_watch() -> None:
    world = await guarded_world()
    await world.create(role("reader", rule("get", "pods")))
    await world.create(binding("readers", "ClusterRole/reader", "User/ada"))
    access = world.service.access
    for watch in access._watches.values():
        watch.close()
    await world.service.delete(Key(CLUSTER_ROLE_KIND, "", "reader"))
    await asyncio.sleep(0.05)
    assert not await access.allows(ADA, GET_POD)
    await world.create(role("reader", rule("get", "pods")))
    assert await access.allows(ADA, GET_POD)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["role", "bind", "drop role", "drop binding"]), st.integers(0, 2), st.integers(0, 2),
    ),
    max_size=12,
)  # fmt: skip


@given(_STEPS)
@asynchronous
async def test_the_index_after_any_steps_is_that_of_the_stored_objects(steps: list[tuple[str, int, int]]) -> None:
    world = await guarded_world()
    verbs, users = ("get", "list", "delete"), ("ada", "bob", "eve")
    made: set[Key] = set()
    for act, which, other in steps:
        kind = CLUSTER_ROLE_KIND if act.endswith("role") else "ClusterRoleBinding.rbac.authorization.k8s.io"
        key = Key(kind, "", f"n{which}")
        if act.startswith("drop"):
            if key in made:
                made.discard(key)
                await world.service.delete(key)
        elif key not in made:
            made.add(key)
            body = (
                role(key.name, rule(verbs[other], "pods"))
                if act == "role"
                else binding(key.name, f"ClusterRole/n{which}", f"User/{users[other]}", f"User/{users[which]}")
            )
            await world.create(body)
    fresh = type(world.service.access.index)()
    for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        for each in (await world.store.list(f"{kind}.rbac.authorization.k8s.io")).entries:
            fresh.put(await world.get(each.key))
    for user in users:
        assert set(world.service.access.index.granted(user, ()).everywhere) == set(fresh.granted(user, ()).everywhere)
