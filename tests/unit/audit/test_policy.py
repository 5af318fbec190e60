"""The audit policy: the first rule that matches a request decides its level."""

from __future__ import annotations

import pytest
from tests.kit.access import wants

from kedge.errors import Terminal
from kedge.server.audit.policy import WRITES_POLICY, AuditLevel, AuditPolicy, AuditRead, parse_policy

HEAD = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"


def policy(rules: str) -> AuditPolicy:
    return parse_policy(f"{HEAD}rules:\n{rules}", "policy.yaml")


def level(
    found: AuditPolicy, verb: str, resource: str = "", namespace: str = "", name: str = "", *, user: str = "ada",
    groups: tuple[str, ...] = (), group: str = "", path: str = "",
) -> AuditLevel:  # fmt: skip
    return found.answer(AuditRead(user, groups, wants(verb, resource, namespace, name, group=group), path)).level


def test_the_first_rule_that_matches_decides_and_without_one_nothing_is_logged() -> None:
    found = policy(
        "- {level: None, users: [robot]}\n- {level: Request, verbs: [create]}\n- {level: Metadata, verbs: [get]}\n"
    )
    assert level(found, "create", "pods", user="robot") is AuditLevel.NONE
    assert level(found, "create", "pods") is AuditLevel.REQUEST
    assert level(found, "get", "pods") is AuditLevel.METADATA
    assert level(found, "list", "pods") is AuditLevel.NONE


def test_a_rule_matches_by_group_of_the_user_namespace_and_resource() -> None:
    resources = "resources: [{group: apps, resources: [deployments]}]"
    found = policy(f"- {{level: Metadata, userGroups: [team], namespaces: [shop], {resources}}}\n")
    assert level(found, "get", "deployments", "shop", group="apps", groups=("other", "team")) is AuditLevel.METADATA
    assert level(found, "get", "deployments", "shop", group="apps", groups=("other",)) is AuditLevel.NONE
    assert level(found, "get", "deployments", "bank", group="apps", groups=("team",)) is AuditLevel.NONE
    assert level(found, "get", "deployments", "shop", group="other", groups=("team",)) is AuditLevel.NONE
    assert level(found, "get", "deployments/status", "shop", group="apps", groups=("team",)) is AuditLevel.NONE


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("pods", "pods", "pods/status"),
        ("pods/*", "pods/status", "pods"),
        ("*/scale", "replicationcontrollers/scale", "pods/status"),
        ("pods/status", "pods/status", "pods/scale"),
    ],
)
def test_names_of_resources_have_stars(pattern: str, matched: str, not_matched: str) -> None:
    found = policy(f"- {{level: Metadata, resources: [{{group: '', resources: ['{pattern}']}}]}}\n")
    assert level(found, "get", matched) is AuditLevel.METADATA
    assert level(found, "get", not_matched) is AuditLevel.NONE


def test_a_star_is_every_resource_of_its_group_with_subresources() -> None:
    found = policy("- {level: Metadata, resources: [{group: apps, resources: ['*']}]}\n")
    assert level(found, "get", "deployments/scale", group="apps") is AuditLevel.METADATA
    assert level(found, "get", "pods") is AuditLevel.NONE


def test_a_rule_for_one_name_is_about_that_name_alone() -> None:
    found = policy("- {level: Metadata, resources: [{resources: [nodes], resourceNames: [a]}]}\n")
    assert level(found, "get", "nodes", name="a") is AuditLevel.METADATA
    assert level(found, "get", "nodes", name="b") is AuditLevel.NONE


def test_paths_are_matched_by_rules_for_paths_and_by_rules_for_everything() -> None:
    found = policy("- {level: None, nonResourceURLs: ['/openapi*']}\n- {level: Metadata, resources: [{}]}\n")
    assert level(found, "get", path="/openapi/v2") is AuditLevel.NONE
    assert level(found, "get", path="/metrics") is AuditLevel.NONE, "a rule for resources matches no path"
    assert level(policy("- {level: Metadata}\n"), "get", path="/metrics") is AuditLevel.METADATA
    assert level(policy("- {level: Metadata, nonResourceURLs: [/metrics]}\n"), "get", "pods") is AuditLevel.NONE


@pytest.mark.parametrize(
    ("resource", "group"),
    [
        ("secrets", ""),
        ("configmaps", ""),
        ("serviceaccounts/token", ""),
        ("pods/exec", ""),
        ("tokenreviews", "authentication.k8s.io"),
    ],
)
def test_bodies_of_secrets_are_never_logged(resource: str, group: str) -> None:
    found = policy("- {level: RequestResponse}\n")
    assert level(found, "create", resource, group=group) is AuditLevel.METADATA
    assert level(found, "create", "pods") is AuditLevel.REQUEST_RESPONSE


def test_the_policy_of_writes_has_no_reads() -> None:
    assert not WRITES_POLICY.reads
    assert policy("- {level: Metadata}\n").reads
    assert not policy("- {level: None, verbs: [get]}\n- {level: Metadata, verbs: [patch]}\n").reads
    for verb in ("create", "update", "patch", "delete", "deletecollection"):
        assert level(WRITES_POLICY, verb, "pods") is AuditLevel.METADATA
    for verb in ("get", "list", "watch"):
        assert level(WRITES_POLICY, verb, "pods") is AuditLevel.NONE


def test_remembered_answers_are_those_of_the_rules() -> None:
    found = policy("- {level: Request, resources: [{resources: [nodes], resourceNames: [a]}]}\n- {level: Metadata}\n")
    for _ in range(2):
        for number in range(5_000):  # more than are remembered
            assert level(found, "get", "nodes", name=f"n{number}") is AuditLevel.METADATA
        assert level(found, "get", "nodes", name="a") is AuditLevel.REQUEST


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [", "is not YAML"),
        ("kind: Policy\napiVersion: audit.k8s.io/v1\n", "missing required field `rules`"),
        ("kind: Pod\napiVersion: v1\nrules: [{level: None}]", "its first lines are"),
        (f"{HEAD}rules: []", "has no rules"),
        (f"{HEAD}rules: [{{level: All}}]", "write one of None, Metadata, Request, RequestResponse"),
        (f"{HEAD}rules: [{{level: Metadata, user: [a]}}]", "unknown field `user`"),
        (f"{HEAD}rules: [{{level: Metadata, namespaces: [a], nonResourceURLs: [/b]}}]", "make two rules of it"),
        (f"{HEAD}omitStages: [End]\nrules: [{{level: Metadata}}]", "there is no stage 'End'"),
        ("just a text", "is no audit policy"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(Terminal, match=r"policy\.yaml") as refused:
        parse_policy(text, "policy.yaml")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
