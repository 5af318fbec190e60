"""`kedge coupling` over a kept run: the command, its forms, one decision, and the fields that a scheduler declares."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kedge.api.field_notes import WHOLE
from kedge.cli import main
from kedge.cli.kept_decisions import env_of
from kedge.cli.perturbed_decisions import fields_of_attempt
from kedge.errors import Compacted
from kedge.observe.readers.coupling.fields import touches
from kedge.runtime.cache.kept_log import KeptLogs
from kedge.scheduler.report.declared_reads import READ_FIELDS
from kedge.scheduler.report.recheck import held_at
from kedge.sim.scenario import ScenarioRun, keep_run, load_scenario, run_scenario


@cache
def incident() -> ScenarioRun:
    return run_scenario(load_scenario("pending-after-rollback"), keep=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_run(incident(), tmp_path_factory.mktemp("kept"))


def coupling(kept: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["coupling", *words, "--recording", str(kept)])


def test_the_scheduler_s_quota_is_found_decisive_and_its_limit_is_shared(kept: Path) -> None:
    done = coupling(kept, "default-scheduler", "-o", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    edges = {(each["writer"], each["kind"], each["field"]): each for each in document["edges"]}
    quota = edges["agents", "ZoneQuota.kedge.dev", "status.zones"]
    assert quota["decisive"] is True
    assert quota["readsDeclared"] is True
    assert edges["node-lifecycle", "Node", "spec.taints"]["decisive"] is True
    assert {each["limit"] for each in document["sharedLimits"]} == {"quota"}
    assert any("risk in zone-c" in each["name"] for each in document["sharedLimits"])


def test_the_status_of_pods_reaches_a_deployment_over_two_hops(kept: Path) -> None:
    document = json.loads(coupling(kept, "deployment", "-o", "json").output)
    assert {each["writer"] for each in document["edges"]} == {"replicaset", "user"}
    hops = {(first["writer"], second["writer"]) for first, second in document["paths"]}
    assert ("agents", "replicaset") in hops
    assert ["deployment", "replicaset"] in [sorted(each["controllers"]) for each in document["cycles"]]
    text = coupling(kept, "deployment").output
    assert "two hops:" in text
    assert text.endswith("An edge that is not listed was not seen in this window.\n")
    assert coupling(kept, "deployment", "-o", "dot").output.startswith("digraph coupling {")


def test_one_decision_has_its_own_inputs_and_declarations_add_edges(kept: Path) -> None:
    decision = next(
        each for each in incident().recording.decisions if each.controller == "deployment" and len(each.reads) > 1
    )
    one = json.loads(coupling(kept, "deployment", "--decision", decision.id, "-o", "json").output)
    assert one["decision"] == decision.id
    seen = {each["kind"] for each in one["edges"]}
    assert seen <= {read.cache.partition("[")[0] for read in decision.reads}
    declared = json.loads(coupling(kept, "deployment", "--declared", "-o", "json").output)
    added = [each for each in declared["edges"] if each["basis"] == "declared"]
    found = {(each["writer"], each["kind"], each["field"]) for each in added}
    kinds = ("Deployment.apps", "PriorityClass.scheduling.k8s.io", "ReplicaSet.apps", "ResourceQuota")
    assert found == {
        ("autoscaler", "Deployment.apps", "*"),
        ("autoscaler", "ReplicaSet.apps", "*"),
        ("quota", "ResourceQuota", "status"),
        ("rollout", "Deployment.apps", "*"),
        *(("garbage", kind, field) for kind in kinds for field in ("*", "existence")),
        *(("namespace", kind, "existence") for kind in kinds),
    }, "replicaset's write of a status is recorded, and no right writes another field"
    assert {each["kind"] for each in added if each["changes"] == "silent"} == {"PriorityClass.scheduling.k8s.io"}
    assert {each["changes"] for each in added} == {"watched by declaration", "silent"}


@pytest.mark.parametrize("words", [["nothing-of-this-name"], ["deployment", "--decision", "deployment:no:1"]])
def test_a_name_that_the_records_do_not_have_is_refused_with_the_next_step(kept: Path, words: list[str]) -> None:
    done = coupling(kept, *words)
    assert done.exit_code == 1
    assert "use one of" in done.output or "was not kept" in done.output


def test_without_a_cluster_it_names_the_command_that_starts_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["coupling", "deployment", "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert f"start one with `kedge up --state {tmp_path}`, or give another --state" in done.output


def test_without_an_option_the_folder_is_that_of_the_kubeconfig_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "decisions").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "own" / "admin.kubeconfig"))
    done = CliRunner().invoke(main, ["coupling", "deployment"])
    assert done.exit_code == 1
    assert "no record has a decision of deployment" in done.output, "the log of that folder is read, and empty"


@pytest.mark.parametrize("name", ["pending-after-rollback", "stale-policy-canary"])
def test_a_scheduler_reads_no_field_that_it_does_not_declare(name: str) -> None:
    recording = (incident() if name == "pending-after-rollback" else run_scenario(load_scenario(name))).recording
    env, tried = env_of(recording), 0
    for decision in [each for each in recording.decisions if each.scheduling is not None and each.scheduling.choice]:
        try:
            held = held_at(decision, KeptLogs(recording.received, decision.process, env.limits).at(decision.marks))
        except Compacted:
            continue
        touched = fields_of_attempt(decision, held, env)
        if "spec.hostname" in touched["Pod"] or "spec.restartPolicy" in touched["Pod"]:
            continue  # two specs were compared as a whole, to see that two pods are alike
        tried += 1
        for kind, fields in touched.items():
            missing = [each for each in fields if not any(touches(declared, each) for declared in READ_FIELDS[kind])]
            assert missing == [], (kind, missing)
        if tried >= 5:
            break
    assert tried
    assert not any(WHOLE in fields for fields in READ_FIELDS.values())
