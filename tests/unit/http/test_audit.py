"""The audit log of the HTTP server: one entry for each request, allowed or not, with its facts and without secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit.access import ADA, ADMIN, binding
from tests.kit.audit import EVERYTHING, METADATA, AuditedApi, audited_api, entries, text_of
from tests.kit.loops import eventually, on_loop
from tests.objects import CONFIG_MAP

from kedge.api.kinds import KINDS
from kedge.api.requests import Create, Get, OpenWatch, RequestToken, WatchOptions, WriteOptions
from kedge.client.direct import DirectTransport
from kedge.errors import AlreadyExists, MethodNotAllowed, NotFound, Unavailable
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.server.audit import WRITES_POLICY, AuditEvent
from kedge.server.audit.events import NO_BODY

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
POD = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "web:1", "command": ["true"]}]}}
ORIGIN = ("Kedge-Decision: replicaset:p-1:7", "Kedge-Operation: replicaset:p-1:7#1", "User-Agent: test/1")
DECISION, OPERATION, OUTCOME = "kedge.dev/decision", "kedge.dev/operation", "kedge.dev/outcome"
OBJECTS, LEFT_OUT = "kedge.dev/objects", "kedge.dev/objects-left-out"
BEFORE, AFTER, LATENCY = "kedge.dev/revision-before", "kedge.dev/revision", "kedge.dev/latency-seconds"


def noted(event: AuditEvent) -> tuple[str, str, int, str]:
    assert event.response_status is not None
    return event.verb, event.user.username, event.response_status.code, event.annotations[OUTCOME]


@on_loop
async def test_a_write_has_user_verb_object_both_revisions_decision_outcome_and_latency(tmp_path: Path) -> None:
    async with audited_api(tmp_path, METADATA) as api:
        _, made = await api.send(ADMIN, "POST", PODS, POD, *ORIGIN)
        _, changed = await api.send(ADMIN, "PATCH", f"{PODS}/web", {"metadata": {"labels": {"a": "1"}}})
        await api.send(ADMIN, "DELETE", f"{PODS}/web?gracePeriodSeconds=0")
    created, patched, deleted = entries(tmp_path)
    assert noted(created) == ("create", "admin", 201, "done")
    reference = created.object_ref
    assert reference is not None
    assert (reference.resource, reference.namespace, reference.name, reference.uid) == (
        "pods", "default", "web", made["metadata"]["uid"],
    )  # fmt: skip
    notes = created.annotations
    assert (notes[DECISION], notes[OPERATION]) == ("replicaset:p-1:7", "replicaset:p-1:7#1")
    assert (notes.get(BEFORE), notes[AFTER]) == (None, made["metadata"]["resourceVersion"])
    assert notes["authorization.k8s.io/decision"] == "allow"
    assert 0 < float(notes[LATENCY]) < 20
    assert (created.source_ips, created.user_agent, created.request_uri) == (("127.0.0.1",), "test/1", PODS)
    assert (created.level, created.stage, created.request_object) == ("Metadata", "ResponseComplete", NO_BODY)
    notes = patched.annotations
    # The patch named no version: the server proved which one it replaced.
    first, second = (each["metadata"]["resourceVersion"] for each in (made, changed))
    assert (notes[BEFORE], notes[AFTER]) == (first, second)
    assert deleted.annotations[BEFORE] == second
    assert len({each.audit_id for each in (created, patched, deleted)}) == 3


@on_loop
async def test_requests_that_are_refused_have_entries_too(tmp_path: Path) -> None:
    async with audited_api(tmp_path, METADATA) as api:
        assert (await api.send(ADA, "GET", f"{PODS}/web"))[0] == 403
        assert (await api.send(ADA, "POST", PODS, POD))[0] == 403
        assert (await api.send(None, "GET", PODS))[0] == 401
        assert (await api.send(ADMIN, "GET", f"{PODS}/web"))[0] == 404
        assert (await api.send(ADMIN, "PUT", f"{MAPS}/a", {"metadata": {"name": "b"}}))[0] in (400, 404, 422)
        assert (await api.send(ADMIN, "GET", "/apis/none/v1/things"))[0] == 404
        assert (await api.send(ADA, "GET", "/metrics"))[0] == 403
    found = entries(tmp_path)
    assert [noted(each)[:3] for each in found[:4]] == [
        ("get", "ada", 403), ("create", "ada", 403), ("list", "system:anonymous", 401), ("get", "admin", 404),
    ]  # fmt: skip
    refused = found[0].response_status
    assert refused is not None
    assert refused.reason == "Forbidden"
    assert 'User "ada" cannot get' in refused.message
    decisions = [each.annotations.get("authorization.k8s.io/decision") for each in found]
    assert decisions[:4] == ["forbid", "forbid", None, "allow"]
    assert (found[-1].object_ref, found[-1].request_uri) == (None, "/metrics")


@on_loop
async def test_an_entry_has_the_user_and_the_user_that_it_impersonates(tmp_path: Path) -> None:
    async with audited_api(tmp_path, METADATA) as api:
        await api.service.create(
            KINDS.resolve("clusterrolebinding"), binding("ada-edits", "ClusterRole/edit", "User/ada")
        )
        assert (await api.send(ADMIN, "POST", PODS, POD, "Impersonate-User: ada"))[0] == 201
        assert (await api.send(ADA, "GET", f"{PODS}/web", None, "Impersonate-User: admin"))[0] == 403
    done, refused = entries(tmp_path)
    assert done.impersonated_user is not None
    assert (done.user.username, done.impersonated_user.username) == ("admin", "ada")
    assert (refused.user.username, refused.impersonated_user) == ("ada", None), "it was not allowed to act as another"
    assert len(entries(tmp_path, user="ada")) == 2


@on_loop
async def test_a_watch_has_an_entry_at_its_start_and_one_at_its_end(tmp_path: Path) -> None:
    async with audited_api(tmp_path, METADATA, limits=Limits(audit_sync_s=0.01)) as api:
        watching = asyncio.create_task(api.send(ADMIN, "GET", f"{PODS}?watch=true&timeoutSeconds=1"))
        await eventually(lambda: [each.stage for each in entries(tmp_path)] == ["ResponseStarted"])
        await watching
    began, ended = entries(tmp_path)
    assert (began.verb, began.stage, ended.stage) == ("watch", "ResponseStarted", "ResponseComplete")
    assert began.audit_id == ended.audit_id
    assert float(began.annotations[LATENCY]) < 1 <= float(ended.annotations[LATENCY])


@on_loop
async def test_a_policy_may_leave_out_the_start_of_a_watch(tmp_path: Path) -> None:
    policy = METADATA.replace("rules:", "omitStages: [ResponseStarted]\nrules:")
    async with audited_api(tmp_path, policy) as api:
        await api.send(ADMIN, "GET", f"{PODS}?watch=true&timeoutSeconds=1")
    assert [each.stage for each in entries(tmp_path)] == ["ResponseComplete"]


@on_loop
async def test_each_call_of_a_batch_has_an_entry_and_the_batch_has_none(tmp_path: Path) -> None:
    calls = [
        ["POST", PODS, {"kedge-decision": "replicaset:p-1:8"}, POD],
        ["POST", PODS, {}, POD],
    ]
    async with audited_api(tmp_path, METADATA) as api:
        await api.send(ADMIN, "POST", "/kedge/batch", calls)
    found = entries(tmp_path)
    assert sorted(noted(each)[2:] for each in found) == [(201, "done"), (409, "AlreadyExists")]
    assert {each.request_uri for each in found} == {PODS}
    assert len(entries(tmp_path, decision="replicaset:p-1:8")) == 1


def deleted_by(event: AuditEvent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(event.annotations[OBJECTS])
    return found


@on_loop
async def test_a_deletecollection_lists_the_objects_that_it_deleted_with_their_versions(tmp_path: Path) -> None:
    async with audited_api(tmp_path, WRITES_POLICY, limits=Limits(audit_objects_max=3)) as api:
        made = {}
        for name in ("a", "b", "c", "held"):
            metadata = {"name": name, "finalizers": ["example.com/hold"] if name == "held" else []}
            _, made[name] = await api.send(ADMIN, "POST", MAPS, {"metadata": metadata})
        await api.send(ADMIN, "DELETE", f"{MAPS}?fieldSelector=metadata.name%3Dheld")
        await api.send(ADMIN, "DELETE", MAPS)
        await api.send(ADMIN, "DELETE", MAPS)
    *_, marked, deleted, again = entries(tmp_path)
    versions = {name: int(each["metadata"]["resourceVersion"]) for name, each in made.items()}
    (held,) = deleted_by(marked)
    assert (held["name"], held["before"]) == ("held", versions["held"])
    assert held["revision"] > held["before"]
    assert "removed" not in held, "a finalizer holds it"
    gone = deleted_by(deleted)
    assert [(each["name"], each["namespace"], each["before"], each["removed"]) for each in gone] == [
        (name, "default", versions[name], True) for name in ("a", "b", "c")
    ]
    assert deleted.annotations[LEFT_OUT] == "1", "the list is bounded, and has the number of the others"
    assert LEFT_OUT not in marked.annotations
    assert [each["name"] for each in deleted_by(again)] == ["held"]
    assert again.object_ref is not None
    assert (again.verb, again.object_ref.resource, again.object_ref.name) == ("deletecollection", "configmaps", "")


@on_loop
async def test_a_deletecollection_that_fails_lists_the_objects_that_it_deleted_before(tmp_path: Path) -> None:
    async with audited_api(tmp_path, WRITES_POLICY) as api:
        _, first = await api.send(ADMIN, "POST", MAPS, {"metadata": {"name": "a"}})
        await api.send(ADMIN, "POST", MAPS, {"metadata": {"name": "b"}})
        body = {"preconditions": {"resourceVersion": first["metadata"]["resourceVersion"]}}
        code, _ = await api.send(ADMIN, "DELETE", MAPS, body)
    assert code == 409
    entry = entries(tmp_path)[-1]
    assert noted(entry) == ("deletecollection", "admin", 409, "Conflict")
    assert [each["name"] for each in deleted_by(entry)] == ["a"]


@on_loop
async def test_bodies_are_logged_at_their_levels(tmp_path: Path) -> None:
    policy = EVERYTHING.replace("rules: [", "rules: [{level: Request, verbs: [patch]}, ")
    async with audited_api(tmp_path, policy) as api:
        await api.send(ADMIN, "POST", PODS, POD)
        await api.send(ADMIN, "PATCH", f"{PODS}/web", {"metadata": {"labels": {"a": "1"}}})
        await api.send(ADMIN, "GET", f"{PODS}/web")
        large = {"metadata": {"name": "large", "annotations": {"a": "x" * 70_000}}, "spec": POD["spec"]}
        await api.send(ADMIN, "POST", PODS, large)
    created, patched, read, left_out = entries(tmp_path)
    assert json.loads(bytes(created.request_object)) == POD
    assert json.loads(bytes(created.response_object))["metadata"]["name"] == "web"
    assert (json.loads(bytes(patched.request_object)), patched.response_object) == (
        {"metadata": {"labels": {"a": "1"}}}, NO_BODY,
    )  # fmt: skip
    assert json.loads(bytes(read.response_object))["metadata"]["labels"] == {"a": "1"}
    assert not left_out.request_object
    assert left_out.annotations["kedge.dev/body"] == "left out: larger than 65536 bytes"


SECRET, TOKEN = "c2VjcmV0LXBhc3N3b3Jk", "very.secret.token"


@on_loop
async def test_secrets_and_tokens_are_in_no_entry_whatever_the_policy_and_the_request(tmp_path: Path) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": SECRET}}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": SECRET}}
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": TOKEN}}
    async with audited_api(tmp_path, EVERYTHING) as api:
        await api.send(ADMIN, "POST", SECRETS, body)
        await api.send(ADMIN, "GET", f"{SECRETS}/s")
        await api.send(ADMIN, "GET", SECRETS)
        await api.send(ADMIN, "PATCH", f"{SECRETS}/s", {"data": {"b": SECRET}})
        await api.send(ADMIN, "PUT", f"{SECRETS}/s", {**body, "type": SECRET})
        await api.send(ADMIN, "POST", SECRETS, {**body, "data": {"a": f"not base64 {SECRET}"}})
        await api.send(ADMIN, "POST", MAPS, settings)
        await api.send(ADMIN, "GET", f"{MAPS}/m")
        for wrong in (PODS, "/api/v1/nodes", "/apis/apps/v1/namespaces/default/deployments"):
            await api.send(ADMIN, "POST", wrong, body)  # a body sent to a wrong path
            await api.send(ADMIN, "PUT", f"{wrong}/s", {"kind": "List", "items": [body]})
        await api.send(ADMIN, "POST", "/kedge/batch", [["POST", SECRETS, {}, {**body, "metadata": {"name": "t"}}]])
        await api.send(ADMIN, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
        await api.send(None, "GET", PODS, None, f"Authorization: Bearer {TOKEN}")
        await api.send(ADMIN, "POST", f"{ACCOUNTS}/default/token", {"spec": {}})
        await api.send(ADMIN, "DELETE", SECRETS)
    text = text_of(tmp_path)
    assert len(entries(tmp_path)) == 19
    for hidden in (SECRET, TOKEN, "eyJ"):
        assert hidden not in text
    kept = [each for each in entries(tmp_path) if each.request_object or each.response_object]
    assert kept == [], "only Secrets, ConfigMaps and tokens were sent"


@on_loop
async def test_a_policy_of_writes_has_no_entry_of_reads(tmp_path: Path) -> None:
    async with audited_api(tmp_path, WRITES_POLICY) as api:
        await api.send(ADMIN, "GET", PODS)
        await api.send(ADMIN, "GET", f"{PODS}/web")
        await api.send(ADMIN, "GET", f"{PODS}?watch=true&timeoutSeconds=1")
        await api.send(ADMIN, "POST", PODS, POD)
        assert (await api.send(None, "GET", "/livez"))[0] == 200
    assert [each.verb for each in entries(tmp_path)] == ["create"]


@on_loop
async def test_a_strict_log_that_cannot_be_written_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    async with audited_api(tmp_path, WRITES_POLICY, strict=True) as api:
        api.log.failing = True
        code, refused = await api.send(ADMIN, "POST", PODS, POD)
        assert (code, refused["reason"]) == (503, "ServiceUnavailable")
        assert "audit log" in refused["message"]
        assert (await api.send(ADMIN, "GET", f"{PODS}/web"))[0] == 404, "it was not written"
        transport = DirectTransport(api.service, caller="system:x", groups=("system:masters",), auditor=api.auditor)
        with pytest.raises(Unavailable, match="audit log"):
            await transport.send(create_map("direct"))
        api.log.failing = False
        assert (await api.send(ADMIN, "POST", PODS, POD))[0] == 201


@on_loop
async def test_a_log_that_is_not_strict_serves_on(tmp_path: Path) -> None:
    async with audited_api(tmp_path, WRITES_POLICY) as api:
        api.log.failing = True
        assert (await api.send(ADMIN, "POST", PODS, POD))[0] == 201


def create_map(name: str, **origin: Any) -> Any:
    options = WriteOptions(origin=Origin(**origin))
    return Create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "default"}}, "", options)


@on_loop
async def test_components_in_the_process_of_the_server_have_entries_too(tmp_path: Path) -> None:
    async with audited_api(tmp_path, METADATA) as api:
        await send_directly(api)
    made, refused, read, began, ended = entries(tmp_path, user="system:plane")
    assert made.object_ref is not None
    assert (made.object_ref.resource, made.object_ref.name, made.user.groups) == (
        "configmaps",
        "m",
        ("system:masters", "system:authenticated"),
    )
    assert made.annotations[DECISION] == "job:p-1:3"
    assert made.annotations[AFTER]
    assert noted(made) == ("create", "system:plane", 201, "done")
    assert noted(refused)[2:] == (409, "AlreadyExists")
    assert noted(read) == ("get", "system:plane", 404, "NotFound")
    assert (began.stage, ended.stage, began.verb) == ("ResponseStarted", "ResponseComplete", "watch")


@on_loop
async def test_a_token_for_a_component_in_the_process_is_logged_as_over_http(tmp_path: Path) -> None:
    """It writes no object, and is in a log of writes all the same."""
    async with audited_api(tmp_path, WRITES_POLICY) as api:
        transport = DirectTransport(api.service, caller="system:plane", auditor=api.auditor)
        with pytest.raises(MethodNotAllowed, match="no key for tokens"):
            await transport.send(RequestToken(key=Key("ServiceAccount", "default", "default")))
    (entry,) = entries(tmp_path)
    assert entry.object_ref is not None
    assert (entry.verb, entry.object_ref.subresource) == ("create", "token")


async def send_directly(api: AuditedApi) -> None:
    transport = DirectTransport(api.service, caller="system:plane", groups=("system:masters",), auditor=api.auditor)
    await transport.send(create_map("m", decision="job:p-1:3"))
    with pytest.raises(AlreadyExists):
        await transport.send(create_map("m"))
    with pytest.raises(NotFound):
        await transport.send(Get(Key("ConfigMap", "default", "none")))
    events = await transport.open_watch(OpenWatch(CONFIG_MAP, WatchOptions(namespace="default")))
    await events.aclose()
