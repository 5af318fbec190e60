"""Reviews: a caller asks for its identity and its permissions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import sent

from kedge.errors import BadRequest, Forbidden, Invalid
from kedge.server.http.access import AUTHENTICATED, MASTERS, Caller, check_path_allowed
from kedge.server.http.reviews import answer_review, is_review
from kedge.server.http.routes import ResourcePath

ADMIN = Caller("admin", (MASTERS, AUTHENTICATED))
AGENT = Caller("agent", ("kedge:agents", AUTHENTICATED))
STRANGER = Caller("stranger", (AUTHENTICATED,))
WHOAMI = ResourcePath("authentication.k8s.io", "v1", "selfsubjectreviews")
ACCESS = ResourcePath("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
RULES = ResourcePath("authorization.k8s.io", "v1", "selfsubjectrulesreviews")


def allowed(caller: Caller, **spec: Any) -> bool:
    found: bool = answer_review(ACCESS, {"spec": spec}, caller)["status"]["allowed"]
    return found


def test_a_caller_learns_its_name_and_groups() -> None:
    found = answer_review(WHOAMI, {}, STRANGER)
    assert found["status"]["userInfo"] == {"username": "stranger", "groups": [AUTHENTICATED]}
    assert (found["kind"], found["apiVersion"]) == ("SelfSubjectReview", "authentication.k8s.io/v1")


def test_access_follows_the_roles() -> None:
    pods = {"verb": "list", "resource": "pods", "namespace": "default"}
    status = {"verb": "patch", "resource": "pods", "subresource": "status"}
    assert [allowed(caller, resourceAttributes=pods) for caller in (ADMIN, AGENT, STRANGER)] == [True, True, False]
    assert [allowed(caller, resourceAttributes=status) for caller in (ADMIN, AGENT, STRANGER)] == [True, True, False]
    every = {"verb": "*", "group": "*", "resource": "*"}
    assert [allowed(caller, resourceAttributes=every) for caller in (ADMIN, AGENT)] == [True, False]


def test_access_to_paths_is_reviewed_as_it_is_enforced() -> None:
    for path, expected in (("/metrics", [True, True, False]), ("/apis/apps", [True] * 3), ("/healthz", [True] * 3)):
        found = [
            allowed(each, nonResourceAttributes={"path": path, "verb": "get"}) for each in (ADMIN, AGENT, STRANGER)
        ]
        assert found == expected
    check_path_allowed(AGENT, b"/metrics")
    with pytest.raises(Forbidden, match='cannot get path "/metrics"'):
        check_path_allowed(STRANGER, b"/metrics")


def test_a_review_that_asks_for_nothing_or_for_both_is_invalid() -> None:
    pods, path = {"verb": "get", "resource": "pods"}, {"path": "/", "verb": "get"}
    for spec in ({}, {"resourceAttributes": pods, "nonResourceAttributes": path}):
        with pytest.raises(Invalid, match="exactly one"):
            answer_review(ACCESS, {"spec": spec}, ADMIN)
    with pytest.raises(BadRequest, match="was sent as"):
        answer_review(ACCESS, {"apiVersion": "v1", "kind": "Pod"}, ADMIN)


def test_rules_list_everything_that_a_caller_may_do() -> None:
    body = {"spec": {"namespace": "default"}}
    assert answer_review(RULES, body, ADMIN)["status"]["resourceRules"] == [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    ]
    rules = answer_review(RULES, body, AGENT)["status"]["resourceRules"]
    assert {"verbs": ["delete"], "apiGroups": ["*"], "resources": ["pods"]} in rules
    own = answer_review(RULES, body, STRANGER)["status"]
    assert {rule["resources"][0] for rule in own["resourceRules"]} == {
        "selfsubjectreviews",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
    }
    assert "/metrics" not in own["nonResourceRules"][0]["nonResourceURLs"]
    with pytest.raises(BadRequest, match="namespace"):
        answer_review(RULES, {}, ADMIN)


def test_only_the_paths_of_reviews_are_reviews() -> None:
    assert is_review(ACCESS)
    assert not is_review(ACCESS._replace(group="apps"))


@on_loop
async def test_reviews_are_answered_over_http() -> None:
    async with local_api() as (_, port):
        code, _, found = await sent(port, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        other, _, _ = await sent(port, "POST", "/apis/apps/v1/selfsubjectreviews", {})
    assert (code, found["status"]["userInfo"]["username"], other) == (201, "test", 404)
