"""Impersonation: a caller acts as the users, groups and accounts that a role lets it act as, and as no others."""

from __future__ import annotations

from typing import Any

from tests.kit.access import ADA, ADMIN, GuardedApi, binding, guarded_api, role, rule
from tests.kit.loops import on_loop

from kedge.api.access import Caller
from kedge.api.kinds import KINDS

WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PODS = "/api/v1/namespaces/default/pods"


async def whoami(api: GuardedApi, caller: Caller, *headers: str) -> tuple[int, Any]:
    code, found = await api.send(caller, "POST", WHOAMI, {}, *headers)
    return code, found["status"]["userInfo"] if code == 201 else found


async def create(api: GuardedApi, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        await api.service.create(KINDS.of_api(body["apiVersion"], body["kind"]), body)


@on_loop
async def test_an_administrator_acts_as_another_user_without_its_own_rights() -> None:
    async with guarded_api() as api:
        assert await whoami(api, ADMIN, "Impersonate-User: someone") == (
            201, {"username": "someone", "groups": ["system:authenticated"]},
        )  # fmt: skip
        assert (await api.send(ADMIN, "GET", PODS))[0] == 200
        assert (await api.send(ADMIN, "GET", PODS, None, "Impersonate-User: someone"))[0] == 403


@on_loop
async def test_groups_uid_and_extras_are_impersonated_with_a_user() -> None:
    headers = (
        "Impersonate-User: s", "Impersonate-Group: kedge:schedulers", "Impersonate-Group: other", "Impersonate-Uid: 7",
        "Impersonate-Extra-example.com%2Fscopes: view", "Impersonate-Extra-example.com%2Fscopes: edit",
    )  # fmt: skip
    async with guarded_api() as api:
        code, found = await whoami(api, ADMIN, *headers)
        assert (code, found["groups"]) == (201, ["kedge:schedulers", "other", "system:authenticated"])
        assert (found["uid"], found["extra"]) == ("7", {"example.com/scopes": ["view", "edit"]})
        for alone in ("Impersonate-Group: system:masters", "Impersonate-Uid: 7"):
            assert (await whoami(api, ADMIN, alone))[0] == 400
        assert (await whoami(api, ADMIN, "Impersonate-User: \xff"))[0] in (201, 400)


@on_loop
async def test_an_account_is_impersonated_with_its_groups_and_anonymous_with_its_own() -> None:
    async with guarded_api() as api:
        _, found = await whoami(api, ADMIN, "Impersonate-User: system:serviceaccount:default:robot")
        assert found["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
        code, refused = await whoami(api, ADMIN, "Impersonate-User: system:anonymous")
        assert (code, refused["reason"]) == (403, "Forbidden")


@on_loop
async def test_a_caller_impersonates_only_those_that_a_role_names() -> None:
    async with guarded_api() as api:
        allowed = rule("impersonate", "users groups", resourceNames=["bob", "people"])
        await create(api, role("as", allowed), binding("as", "ClusterRole/as", "User/ada"))
        await create(api, binding("robots", "ClusterRole/edit", "User/ada", namespace="default"))
        for headers, expected in (
            (("Impersonate-User: bob",), 201),
            (("Impersonate-User: bob", "Impersonate-Group: people"), 201),
            (("Impersonate-User: bob", "Impersonate-Group: system:masters"), 403),
            (("Impersonate-User: bob", "Impersonate-Group: people, system:masters"), 403),
            (("Impersonate-User: bob", "Impersonate-Uid: 7"), 403),
            (("Impersonate-User: bob", "Impersonate-Extra-Scopes: x"), 403),
            (("Impersonate-User: root",), 403),
            (("Impersonate-User: system:serviceaccount:default:robot",), 201),  # as the role edit allows
            (("Impersonate-User: system:serviceaccount:kube-system:robot",), 403),
        ):
            code, found = await whoami(api, ADA, *headers)
            assert code == expected, (headers, found)
        _, found = await whoami(api, ADA, "Impersonate-User: root")
        assert found["message"] == (
            'users "root" is forbidden: User "ada" cannot impersonate resource "users" in API group "" at the cluster'
            " scope: an administrator can allow it with a ClusterRoleBinding"
        )


@on_loop
async def test_a_refusal_names_user_verb_resource_and_namespace_and_the_next_step() -> None:
    async with guarded_api() as api:
        code, found = await api.send(ADA, "GET", "/apis/apps/v1/namespaces/default/deployments/web")
        assert (code, found["kind"], found["reason"]) == (403, "Status", "Forbidden")
        assert found["message"] == (
            'deployments.apps "web" is forbidden: User "ada" cannot get resource "deployments" in API group "apps" in'
            ' the namespace "default": an administrator can allow it with a RoleBinding'
        )
        _, found = await api.send(ADA, "GET", "/api/v1/nodes")
        assert found["message"].startswith(
            'nodes is forbidden: User "ada" cannot list resource "nodes" in API group "" at the cluster scope'
        )
        _, found = await api.send(ADA, "GET", "/metrics")
        assert found["message"].startswith('forbidden: User "ada" cannot get path "/metrics"')


@on_loop
async def test_a_namespace_is_in_itself_and_a_selector_of_one_name_is_that_name() -> None:
    async with guarded_api() as api:
        one = rule("get list watch", "configmaps", resourceNames=["settings"])
        await create(api, role("one", one, rule("get", "namespaces"), namespace="default"))
        await create(api, binding("one", "Role/one", "User/ada", namespace="default"))
        assert (await api.send(ADA, "GET", "/api/v1/namespaces/default"))[0] == 200
        assert (await api.send(ADA, "GET", "/api/v1/namespaces/kube-system"))[0] == 403
        maps = "/api/v1/namespaces/default/configmaps"
        assert (await api.send(ADA, "GET", f"{maps}?fieldSelector=metadata.name%3Dsettings"))[0] == 200
        assert (await api.send(ADA, "GET", f"{maps}?fieldSelector=metadata.name%3Dother"))[0] == 403
        assert (await api.send(ADA, "GET", maps))[0] == 403


@on_loop
async def test_each_call_of_a_batch_is_made_as_the_user_that_the_batch_or_the_call_impersonates() -> None:
    """The batch's wins; a call of its own is authorized as if it came alone."""
    calls = [["POST", "/api/v1/namespaces", {"Impersonate-User": "admin"}, {"metadata": {"name": "made"}}]]
    async with guarded_api() as api:
        _, refused = await api.send(ADMIN, "POST", "/kedge/batch", calls, "Impersonate-User: someone")
        assert 'User "someone" cannot create' in str(refused)
        _, refused = await api.send(ADMIN, "POST", "/kedge/batch", calls)
        assert 'User "admin" cannot create' in str(refused)
        _, refused = await api.send(ADA, "POST", "/kedge/batch", calls)
        assert 'User "ada" cannot impersonate' in str(refused)
