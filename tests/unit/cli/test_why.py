"""`kedge why`: without a cluster it names the next step, and a workload's pods are those it owns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.kit.loops import on_loop

from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    NAMESPACE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.cli import main
from kedge.cli.live import evidence_from
from kedge.cli.up import state_in_use
from kedge.cli.why import answer_about, why
from kedge.cli.wiring import ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.keys import Key
from kedge.observe.readers.recording import Recording, read_recording
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
WORKLOAD = {"selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}


def test_the_state_folder_is_that_of_the_kubeconfig_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "decisions").mkdir(parents=True)
    other.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", f"{other / 'admin.kubeconfig'}{os.pathsep}{own / 'admin.kubeconfig'}")
    assert state_in_use(None) == own
    assert state_in_use(other) == other, "an option is worth more than the environment"
    monkeypatch.setenv("KUBECONFIG", str(own / "config"))
    assert state_in_use(None) == tmp_path / "kedge", "a kubeconfig of another cluster has no records beside it"


def test_without_a_cluster_it_names_the_command_that_starts_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(why, ["web", "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert f"start one with `kedge up --state {tmp_path}`, or give another --state" in done.output


def owned(name: str, owner: Any, kind: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner.key.name, "uid": owner.uid, "controller": True}
    return {"metadata": {"name": name, "labels": {"app": "x"}, "ownerReferences": [reference]}}


@on_loop
async def test_the_pods_of_a_deployment_are_those_that_its_replica_sets_own() -> None:
    env = system_env()
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    await ensure_namespaces(client)

    async def create(kind: str, body: dict[str, Any]) -> Any:
        return (await client.create(client.kinds.of_key_kind(kind), body, namespace="default")).object

    for name in ("web", "web-api"):
        made = await create(DEPLOYMENT_KIND, {"metadata": {"name": name}, "spec": WORKLOAD})
        owner = await create(REPLICA_SET_KIND, {**owned(f"{name}-1", made, "Deployment"), "spec": WORKLOAD})
        await create(POD_KIND, {**owned(f"{name}-1-0", owner, "ReplicaSet"), "spec": TEMPLATE["spec"]})
    await create(POD_KIND, {"metadata": {"name": "web-stray"}, "spec": TEMPLATE["spec"]})
    answer = answer_about("web", "default", await evidence_from(client, Recording(), "default"))
    assert [each.about for each in answer.parts] == ["Pod/default/web-1-0"]


@on_loop
async def test_a_running_cluster_knows_every_node_so_a_missing_one_is_named() -> None:
    env = system_env()
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    await ensure_namespaces(client)
    kind = client.kinds.of_key_kind(POD_KIND)
    spec = {"nodeName": "nowhere", "containers": [{"name": "main", "image": "x"}]}
    await client.create(kind, {"metadata": {"name": "lost"}, "spec": spec}, namespace="default")
    answer = answer_about("lost", "default", await evidence_from(client, Recording(), "default"))
    assert answer.sentence.startswith("lost names the node nowhere, which does not exist: ")


@on_loop
async def test_a_running_cluster_has_the_objects_of_the_caches_that_an_attempt_marks() -> None:
    env = system_env()
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    await ensure_namespaces(client)
    budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    await client.create(client.kinds.of_key_kind(DISRUPTION_BUDGET_KIND), budget, namespace="default")
    found = await evidence_from(client, Recording(), "default")
    assert Key(DISRUPTION_BUDGET_KIND, "default", "web") in found.objects
    assert Key(NAMESPACE_KIND, "", "default") in found.objects


@pytest.mark.parametrize("arguments", [["--revision", "3"], ["--recording", "no-such-file"]])
def test_a_recording_is_named_and_exists(arguments: list[str]) -> None:
    done = CliRunner().invoke(why, ["web", *arguments])
    assert done.exit_code == 2
    assert "recording" in done.output


def test_a_kept_run_is_explained_as_of_a_revision(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["scenario", "run", "pending-after-rollback", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    (kept,) = tmp_path.iterdir()
    recording = read_recording(kept)
    freed = next(
        commit.revision for commit in recording.commits if Key(POD_KIND, "risk", "risk-report") in commit.deleted
    )
    waiting = why_at(kept, "risk-api", freed)
    assert "ZoneQuota risk" in waiting["sentence"], waiting
    assert "wait for the scheduler to catch up" in waiting["sentence"]
    view = [each["text"] for each in waiting["evidence"] if each["label"] == "debug view"]
    assert {"generation: 42", "rollback observed by scheduler: true, policy v4", "ready replicas: 6 / 8"} <= set(view)
    assert {"tier", "generation", "stages", "conditions", "autoscaler", "coverage"} <= labels(waiting)
    pod = waiting["parts"][0]
    assert {"tier", "stage", "decision", "nodes", "inputs", "conditions", "tried again on"} <= labels(pod)
    assert why_at(kept, "risk-api", recording.commits[-1].revision)["tier"] == "fine"


def why_at(kept: Path, name: str, revision: int) -> dict[str, Any]:
    done = CliRunner().invoke(
        main, ["why", name, "-n", "risk", "--recording", str(kept), "--revision", str(revision), "-o", "json"]
    )
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def labels(answer: dict[str, Any]) -> set[str]:
    return {each["label"] for each in answer["evidence"]}
