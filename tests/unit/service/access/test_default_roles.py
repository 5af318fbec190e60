"""Default roles: they are there after a start, are completed by the next one, and are left alone when asked."""

from __future__ import annotations

import pytest
from tests.kit.access import ADA, binding, guarded_world, rule, wants
from tests.objects import asynchronous

from kedge.api.access import AUTHENTICATED, CONTROLLERS, METRICS_READERS, SCHEDULERS, Caller
from kedge.api.kinds import KINDS
from kedge.api.wellknown import CLUSTER_ROLE_BINDING_KIND, CLUSTER_ROLE_KIND, ROLE_AUTOUPDATE
from kedge.controllers import SHARED_LEASE
from kedge.keys import Key
from kedge.scheduler import DEFAULT_NAME
from kedge.server.service.access.role_table import DEFAULT_ROLES
from kedge.server.service.credentials.signing_rules import RIGHTS


@asynchronous
async def test_a_second_start_writes_nothing() -> None:
    world = await guarded_world()
    assert await world.service.ensure_default_roles() == 0


@asynchronous
async def test_a_missing_rule_or_subject_is_added_and_additions_stay() -> None:
    world = await guarded_world()
    role, bound = Key(CLUSTER_ROLE_KIND, "", "kedge:scheduler"), Key(CLUSTER_ROLE_BINDING_KIND, "", "kedge:scheduler")
    before = (await world.get(role)).edit()["rules"]
    await world.service.patch(role, {"rules": [*before[1:], rule("get", "secrets")]})
    await world.service.patch(bound, {"subjects": binding("x", "Role/x", "User/ada")["subjects"]})
    assert await world.service.ensure_default_roles() == 2
    rules = (await world.get(role)).edit()["rules"]
    assert all(each in rules for each in [*before, rule("get", "secrets")])
    subjects = (await world.get(bound)).edit()["subjects"]
    assert [each["name"] for each in subjects] == ["ada", SCHEDULERS]


@asynchronous
async def test_a_role_that_is_marked_is_left_as_it_is() -> None:
    world = await guarded_world()
    key = Key(CLUSTER_ROLE_KIND, "", "kedge:scheduler")
    await world.service.patch(key, {"rules": [], "metadata": {"annotations": {ROLE_AUTOUPDATE: "false"}}})
    assert await world.service.ensure_default_roles() == 0
    assert (await world.get(key)).edit()["rules"] == []


@asynchronous
async def test_a_binding_to_another_role_is_made_again() -> None:
    world = await guarded_world()
    key = Key(CLUSTER_ROLE_BINDING_KIND, "", "system:basic-user")
    await world.service.delete(key)
    await world.create(binding("system:basic-user", "ClusterRole/cluster-admin", "Group/system:authenticated"))
    assert await world.service.ensure_default_roles() == 1
    assert (await world.get(key)).edit()["roleRef"]["name"] == "system:basic-user"


@asynchronous
async def test_every_authenticated_user_discovers_and_asks_about_itself_and_nothing_else() -> None:
    world = await guarded_world()
    access = world.service.access
    assert all(access.allows_path(ADA, "get", path) for path in ("/api", "/apis/apps/v1", "/openapi/v3", "/version"))
    assert not any(access.allows_path(ADA, "get", path) for path in ("/metrics", "/kedge/backup", "/kedge/debug/x"))
    reviews = wants("create", "selfsubjectaccessreviews", group="authorization.k8s.io")
    assert await access.allows(ADA, reviews)
    assert not await access.allows(ADA, reviews._replace(resource="subjectaccessreviews"))
    assert access.allows_path(Caller("prometheus", (METRICS_READERS,)), "get", "/metrics")


@pytest.mark.parametrize(
    ("role", "wanted", "expected"),
    [
        ("view", wants("list", "pods", "default"), True),
        ("view", wants("get", "secrets", "default", "s"), False),
        ("view", wants("create", "pods", "default"), False),
        ("view", wants("get", "pods/log", "default", "p"), True),
        ("edit", wants("list", "pods", "default"), True),
        ("edit", wants("create", "pods/exec", "default", "p"), True),
        ("edit", wants("get", "secrets", "default", "s"), True),
        ("edit", wants("create", "roles", "default", group="rbac.authorization.k8s.io"), False),
        ("edit", wants("update", "resourcequotas", "default", "q"), False),
        ("admin", wants("create", "roles", "default", group="rbac.authorization.k8s.io"), True),
        ("admin", wants("list", "pods", "default"), True),
        ("admin", wants("update", "resourcequotas", "default", "q"), False),
        ("admin", wants("list", "pods", "other"), False),
        ("cluster-admin", wants("delete", "anything", "default", group="any"), True),
    ],
)
def test_roles_of_users_are_those_of_kubernetes(role: str, wanted: object, *, expected: bool) -> None:
    @asynchronous
    async def check() -> None:
        world = await guarded_world()
        await world.create(binding("ada", f"ClusterRole/{role}", "User/ada", namespace="default"))
        assert await world.service.access.allows(ADA, wanted) is expected  # type: ignore[arg-type]

    check()


@asynchronous
async def test_components_may_not_make_roles_tokens_or_read_what_they_need_not() -> None:
    world = await guarded_world()
    allows = world.service.access.allows
    scheduler, controllers = Caller("s", (SCHEDULERS, AUTHENTICATED)), Caller("c", (CONTROLLERS, AUTHENTICATED))
    assert await allows(scheduler, wants("create", "pods/binding", "default", "p"))
    lease = wants("update", "leases", "kube-system", "x", group="coordination.k8s.io")
    assert await allows(scheduler, lease)
    for each in (scheduler, controllers):
        assert not await allows(each, wants("create", "serviceaccounts/token", "default", "default"))
        assert not await allows(each, wants("create", "clusterrolebindings", group="rbac.authorization.k8s.io"))
        assert not await allows(each, wants("create", "secrets", "kube-system"))
        assert not await allows(each, wants("create", "pods/exec", "default", "p"))
        assert not await allows(each, wants("impersonate", "users", "", "root"))
    assert not await allows(scheduler, lease._replace(namespace="default"))
    assert not await allows(scheduler, wants("get", "secrets", "default", "s"))
    assert not await allows(scheduler, wants("delete", "pods", "default", "p"))


@asynchronous
async def test_controllers_update_their_own_lease_alone() -> None:
    world = await guarded_world()
    allows = world.service.access.allows
    controllers = Caller("c", (CONTROLLERS, AUTHENTICATED))
    own = wants("update", "leases", *SHARED_LEASE[1:], group="coordination.k8s.io")
    assert await allows(controllers, own._replace(verb="create", name=""))
    for verb in ("get", "update"):
        assert await allows(controllers, own._replace(verb=verb))
    for other in (DEFAULT_NAME, "other-controller"):
        assert not await allows(controllers, own._replace(name=other))
    assert not await allows(controllers, own._replace(namespace="default"))
    for verb in ("patch", "delete"):
        assert not await allows(controllers, own._replace(verb=verb))


def test_default_roles_name_only_resources_that_are_served() -> None:
    served = {("events.k8s.io", "events"), ("metrics.k8s.io", "pods"), ("kedge.dev", "reservations/gang")}
    served |= {("", "pods/portforward")}
    served |= {("certificates.k8s.io", f"certificatesigningrequests/{right}") for right in RIGHTS}
    for kind in KINDS:
        served |= {(kind.group, kind.plural), *((kind.group, f"{kind.plural}/{each}") for each in kind.subresources)}
    for role in DEFAULT_ROLES:
        for each in role.rules:
            for group in each.api_groups:
                for resource in each.resources:
                    known = resource == "*" or group.endswith(("authorization.k8s.io", "authentication.k8s.io"))
                    assert known or (group, resource) in served, f"{role.name}: {resource} in {group!r}"
