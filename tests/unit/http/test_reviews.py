"""Reviews: a caller asks for identities and permissions."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from tests.kit.access import ADA, ADMIN, GuardedApi, agent_of, binding, guarded_api, role, rule
from tests.kit.loops import on_loop

from kedge.api.access import AUTHENTICATED, SCHEDULERS, Caller
from kedge.api.kinds import KINDS
from kedge.keys import Key
from kedge.server.http.reviews import is_review
from kedge.server.http.routes import ResourcePath
from kedge.server.http.token_keys import SigningKeys

SCHEDULER = Caller("scheduler", (SCHEDULERS, AUTHENTICATED))
AUTHENTICATION, AUTHORIZATION = "/apis/authentication.k8s.io/v1", "/apis/authorization.k8s.io/v1"


async def allowed(api: GuardedApi, caller: Caller, **spec: Any) -> Any:
    code, found = await api.send(caller, "POST", f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": spec})
    return found["status"]["allowed"] if code == 201 else code


@on_loop
async def test_a_caller_learns_its_name_and_groups() -> None:
    async with guarded_api() as api:
        code, found = await api.send(ADA, "POST", f"{AUTHENTICATION}/selfsubjectreviews", {})
        other, _ = await api.send(ADMIN, "POST", "/apis/apps/v1/selfsubjectreviews", {})
    assert (code, other) == (201, 404)
    assert found["status"]["userInfo"] == {"username": "ada", "groups": [AUTHENTICATED]}
    assert (found["kind"], found["apiVersion"]) == ("SelfSubjectReview", "authentication.k8s.io/v1")


@on_loop
async def test_access_follows_the_roles() -> None:
    pods = {"verb": "list", "resource": "pods", "namespace": "default"}
    status = {"verb": "patch", "resource": "pods", "subresource": "status"}
    every = {"verb": "*", "group": "*", "resource": "*"}
    async with guarded_api() as api:
        for asked, expected in (
            ({"resourceAttributes": pods}, [True, True, False]),
            ({"resourceAttributes": status}, [True, True, False]),
            ({"resourceAttributes": every}, [True, False, False]),
            ({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}, [True, False, False]),
            ({"nonResourceAttributes": {"path": "/apis/apps", "verb": "get"}}, [True, True, True]),
            ({}, [422, 422, 422]),
            ({"resourceAttributes": pods, "nonResourceAttributes": {"path": "/", "verb": "get"}}, [422, 422, 422]),
            ({"resourceAttributes": "pods"}, [400, 400, 400]),
        ):
            assert [await allowed(api, each, **asked) for each in (ADMIN, SCHEDULER, ADA)] == expected, asked
        code, _ = await api.send(ADA, "POST", f"{AUTHORIZATION}/selfsubjectaccessreviews", {"kind": "Pod"})
        assert code == 400


@on_loop
async def test_an_agent_is_reviewed_with_the_objects_of_its_node() -> None:
    async with guarded_api() as api:
        agent = agent_of("node-a")
        own = {"verb": "patch", "resource": "nodes", "subresource": "status", "name": "node-a"}
        assert await allowed(api, agent, resourceAttributes=own)
        assert not await allowed(api, agent, resourceAttributes={**own, "name": "node-b"})
        assert not await allowed(api, agent, resourceAttributes={"verb": "get", "resource": "secrets", "name": "s"})
        code, found = await api.send(
            agent, "POST", f"{AUTHORIZATION}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}}
        )
        assert (code, found["status"]["incomplete"]) == (201, True)


@on_loop
async def test_rules_list_everything_that_a_caller_may_do_in_a_namespace() -> None:
    async def rules(api: GuardedApi, caller: Caller, namespace: str = "default") -> dict[str, Any]:
        body = {"spec": {"namespace": namespace}}
        _, found = await api.send(caller, "POST", f"{AUTHORIZATION}/selfsubjectrulesreviews", body)
        status: dict[str, Any] = found["status"]
        return status

    async with guarded_api() as api:
        assert (await rules(api, ADMIN))["resourceRules"] == [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        ]
        reader = role("reader", rule("get", "pods", resourceNames=["web"]), namespace="default")
        for body in (reader, binding("readers", "Role/reader", "User/ada", namespace="default")):
            await api.service.create(KINDS.of_api(body["apiVersion"], body["kind"]), body)
        own = await rules(api, ADA)
        assert reader["rules"][0] in own["resourceRules"]
        assert reader["rules"][0] not in (await rules(api, ADA, "kube-system"))["resourceRules"]
        assert {each["resources"][0] for each in own["resourceRules"]} == {
            "selfsubjectreviews", "selfsubjectaccessreviews", "pods",
        }  # fmt: skip
        assert not any("/metrics" in each["nonResourceURLs"] for each in own["nonResourceRules"])
        assert not own["incomplete"]
        code, _ = await api.send(ADA, "POST", f"{AUTHORIZATION}/selfsubjectrulesreviews", {})
        assert code == 400


@on_loop
async def test_reviews_of_others_need_a_role() -> None:
    pods = {"verb": "list", "resource": "pods", "namespace": "default"}
    spec = {"resourceAttributes": pods, "user": "bob", "groups": ["people"]}
    path, local = f"{AUTHORIZATION}/subjectaccessreviews", "namespaces/default/localsubjectaccessreviews"
    async with guarded_api() as api:
        assert (await api.send(ADA, "POST", path, {"spec": spec}))[0] == 403
        assert (await api.send(ADA, "POST", f"{AUTHORIZATION}/{local}", {"spec": spec}))[0] == 403
        for body in (
            binding("people", "ClusterRole/view", "Group/people", namespace="default"),
            binding("ada", "ClusterRole/admin", "User/ada", namespace="default"),
            binding("ada", "ClusterRole/system:auth-delegator", "User/ada"),
        ):
            await api.service.create(KINDS.of_api(body["apiVersion"], body["kind"]), body)
        for where in (path, f"{AUTHORIZATION}/{local}"):
            code, found = await api.send(ADA, "POST", where, {"spec": spec})
            assert (code, found["status"]["allowed"]) == (201, True)
        _, found = await api.send(ADA, "POST", path, {"spec": {**spec, "groups": []}})
        assert not found["status"]["allowed"]
        elsewhere = {**spec, "resourceAttributes": {**pods, "namespace": "kube-system"}}
        assert (await api.send(ADA, "POST", f"{AUTHORIZATION}/{local}", {"spec": elsewhere}))[0] == 422
        assert (await api.send(ADA, "POST", path, {"spec": {"resourceAttributes": pods}}))[0] == 422
        assert (await api.send(ADA, "POST", f"{AUTHORIZATION}/namespaces/default/subjectaccessreviews", {}))[0] == 404
        assert (await api.send(ADMIN, "POST", f"{AUTHORIZATION}/localsubjectaccessreviews", {}))[0] == 404


@on_loop
async def test_tokens_are_reviewed_for_those_that_a_role_lets() -> None:
    keys = SigningKeys([ec.generate_private_key(ec.SECP256R1())])
    async with guarded_api(token_keys=keys) as api:
        token = (await api.service.request_token(Key("ServiceAccount", "default", "default"))).token
        path = f"{AUTHENTICATION}/tokenreviews"
        assert (await api.send(ADA, "POST", path, {"spec": {"token": token}}))[0] == 403
        body = binding("ada", "ClusterRole/system:auth-delegator", "User/ada")
        await api.service.create(KINDS.of_api(body["apiVersion"], body["kind"]), body)
        code, found = await api.send(ADA, "POST", path, {"spec": {"token": token}})
        assert (code, found["status"]["user"]["username"]) == (201, "system:serviceaccount:default:default")
        _, found = await api.send(ADA, "POST", path, {"spec": {"token": "x"}})
        assert not found["status"].get("authenticated")
        assert (await api.send(ADA, "POST", path, {}))[0] == 400


def test_only_the_paths_of_reviews_are_reviews() -> None:
    path = ResourcePath("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
    assert is_review(path)
    assert not is_review(path._replace(group="apps"))
    assert not is_review(path._replace(name="x"))
