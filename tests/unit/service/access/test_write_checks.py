"""Writes that could give rights away: roles, bindings and tokens."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.access import ADA, ADMIN, binding, guarded_world, role, rule, written_by
from tests.objects import World, asynchronous

from kedge.api.access import AUTHENTICATED, CONTROLLERS, SCHEDULERS, Caller
from kedge.api.kinds import KINDS
from kedge.api.tokens import format_token, token_secret
from kedge.api.wellknown import CLUSTER_ROLE_BINDING_KIND, CLUSTER_ROLE_KIND, ROLE_KIND, SECRET_KIND, SYSTEM_NAMESPACE
from kedge.controllers import SHARED_LEASE
from kedge.errors import Forbidden, NotFound
from kedge.keys import Key

TOKEN = format_token("abcdefghij", b"0123456789abcdef0123456789abcdef")
WRITES_ROLES = rule("*", "roles rolebindings clusterroles clusterrolebindings", "rbac.authorization.k8s.io")


async def world_of_ada(*rules: dict[str, Any]) -> World:
    """Ada may write roles and bindings, and has these rules."""
    world = await guarded_world()
    writes = {**WRITES_ROLES, "verbs": ["create", "update", "patch", "get", "list"]}
    await world.create(role("ada", writes, *rules))
    await world.create(binding("ada", "ClusterRole/ada", "User/ada"))
    return world


async def write(world: World, caller: Caller, body: dict[str, Any]) -> None:
    kind = KINDS.of_api(body["apiVersion"], body["kind"])
    await world.service.create(kind, body, options=written_by(caller))


@asynchronous
async def test_a_role_grants_only_rights_that_its_writer_holds() -> None:
    world = await world_of_ada(rule("get list", "pods"))
    await write(world, ADA, role("pods", rule("get", "pods"), namespace="default"))
    with pytest.raises(Forbidden) as caught:
        await write(world, ADA, role("more", rule("get", "secrets"), rule("get", "pods")))
    assert 'user "ada" (groups=["system:authenticated"]) is attempting to grant RBAC' in caught.value.message
    assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in caught.value.message
    assert '"pods"' not in caught.value.message
    await write(world, ADMIN, role("more", rule("get", "secrets")))


@asynchronous
async def test_an_update_of_a_role_may_not_add_rights_but_may_change_its_labels() -> None:
    world = await world_of_ada(rule("get", "pods"))
    key = Key(ROLE_KIND, "default", "secrets")
    await world.create(role("secrets", rule("get", "secrets"), namespace="default"))
    options = written_by(ADA)
    await world.service.patch(key, {"metadata": {"labels": {"a": "b"}}}, options=options)
    with pytest.raises(Forbidden, match="not currently held"):
        await world.service.patch(key, {"rules": [rule("get list", "secrets")]}, options=options)
    await world.service.patch(key, {"rules": [rule("get", "pods")]}, options=options)


@asynchronous
async def test_the_verb_escalate_allows_what_is_not_held() -> None:
    world = await world_of_ada(rule("escalate", "clusterroles", "rbac.authorization.k8s.io", resourceNames=["some"]))
    await write(world, ADA, role("some", rule("*", "secrets")))
    with pytest.raises(Forbidden, match="not currently held"):
        await write(world, ADA, role("other", rule("*", "secrets")))


@asynchronous
async def test_only_an_administrator_makes_a_role_aggregate() -> None:
    world = await world_of_ada(rule("get", "pods"))
    selects: dict[str, Any] = {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
    with pytest.raises(Forbidden, match="not currently held"):
        await write(world, ADA, role("wide", **selects))
    await write(world, ADA, role("narrow", rule("get", "pods")))
    with pytest.raises(Forbidden, match="not currently held"):
        await world.service.patch(Key(CLUSTER_ROLE_KIND, "", "narrow"), selects, options=written_by(ADA))


@asynchronous
async def test_a_binding_grants_only_roles_whose_rights_its_writer_holds() -> None:
    world = await world_of_ada(rule("get", "pods"))
    await world.create(role("pods", rule("get", "pods")))
    await write(world, ADA, binding("pods", "ClusterRole/pods", "User/bob", namespace="default"))
    for of in ("ClusterRole/cluster-admin", "ClusterRole/edit", "ClusterRole/view"):
        with pytest.raises(Forbidden, match="not currently held"):
            await write(world, ADA, binding("mine", of, "User/ada", namespace="default"))
    with pytest.raises(NotFound, match="create it before"):
        await write(world, ADA, binding("mine", "ClusterRole/none", "User/ada", namespace="default"))
    subjects = binding("x", "ClusterRole/x", "User/ada")["subjects"]
    key = Key(CLUSTER_ROLE_BINDING_KIND, "", "cluster-admin")
    with pytest.raises(Forbidden, match="not currently held"):
        await world.service.patch(key, {"subjects": subjects}, options=written_by(ADA))


@asynchronous
async def test_the_verb_bind_allows_a_role_that_is_not_held() -> None:
    world = await world_of_ada(rule("bind", "clusterroles", "rbac.authorization.k8s.io", resourceNames=["edit"]))
    await write(world, ADA, binding("editors", "ClusterRole/edit", "User/bob", namespace="default"))
    with pytest.raises(Forbidden):
        await write(world, ADA, binding("admins", "ClusterRole/admin", "User/bob", namespace="default"))


@asynchronous
async def test_rights_in_one_namespace_cannot_be_granted_in_another_or_everywhere() -> None:
    world = await world_of_ada()
    await world.create(binding("ada", "ClusterRole/admin", "User/ada", namespace="default"))
    await write(world, ADA, binding("bob", "ClusterRole/admin", "User/bob", namespace="default"))
    for namespace in ("kube-system", ""):
        with pytest.raises(Forbidden, match="not currently held"):
            await write(world, ADA, binding("bob", "ClusterRole/admin", "User/bob", namespace=namespace))


@asynchronous
async def test_a_token_is_written_only_by_callers_that_may_act_as_its_user() -> None:
    """The writer of a token chooses its groups, so a component could make itself an administrator."""
    world = await world_of_ada(rule("impersonate", "users groups", resourceNames=["bob", "people"]))
    for user, groups, allowed in (
        ("bob", ("people",), True), ("bob", ("system:masters",), False), ("root", ("people",), False),
    ):  # fmt: skip
        body = token_secret(TOKEN, user, groups, None)
        if allowed:
            await write(world, ADA, body)
            await world.service.delete(Key(SECRET_KIND, SYSTEM_NAMESPACE, body["metadata"]["name"]))
        else:
            with pytest.raises(Forbidden, match="cannot impersonate"):
                await write(world, ADA, body)


@asynchronous
async def test_a_component_that_patches_every_secret_makes_no_token_of_its_own() -> None:
    world = await guarded_world()
    controllers = Caller("c", (CONTROLLERS,))
    body = token_secret(TOKEN, "bob", (), None)
    key = Key(SECRET_KIND, SYSTEM_NAMESPACE, body["metadata"]["name"])
    await write(world, ADMIN, body)
    await world.service.patch(key, {"metadata": {"labels": {"a": "b"}}}, options=written_by(controllers))
    stolen = {"data": token_secret(TOKEN, "root", ("system:masters",), None)["data"]}
    for patch in (stolen, {"data": {"groups": "c3lzdGVtOm1hc3RlcnM="}}, {"data": {"user": ""}}, {"data": None}):
        with pytest.raises(Forbidden):
            await world.service.patch(key, patch, options=written_by(controllers))


@asynchronous
async def test_a_scheduler_writes_leases_of_every_name_but_that_of_the_controllers() -> None:
    """Its lease has the schedulerName of its pods, which a role cannot know."""
    world = await guarded_world()
    scheduler = Caller("s", (SCHEDULERS, AUTHENTICATED))
    controllers = Caller("c", (CONTROLLERS, AUTHENTICATED))
    plane = Caller("p", (CONTROLLERS, SCHEDULERS, AUTHENTICATED))
    body: dict[str, Any] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
    for name in ("default-scheduler", "other-scheduler"):
        await write(world, scheduler, {**body, "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}})
    shared = {**body, "metadata": {"name": SHARED_LEASE.name, "namespace": SYSTEM_NAMESPACE}}
    with pytest.raises(Forbidden, match="it is that of the controllers"):
        await write(world, scheduler, shared)
    await write(world, controllers, shared)
    taken = {"spec": {"holderIdentity": "s"}}
    with pytest.raises(Forbidden, match="it is that of the controllers"):
        await world.service.patch(SHARED_LEASE, taken, options=written_by(scheduler))
    await world.service.patch(SHARED_LEASE, taken, options=written_by(plane))
