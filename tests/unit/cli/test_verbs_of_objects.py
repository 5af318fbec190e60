"""Pure parts of apply, get, drain and rollout: manifests, types by their words, pods to evict, states."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from kedge.cli.resources.catalog import Catalog, ResourceType, catalog_of
from kedge.cli.resources.manifests import read_manifests
from kedge.cli.resources.nodes import plan_drain
from kedge.cli.resources.rollouts import rollout_state
from kedge.errors import BadRequest, NotFound, Terminal

# -- manifests -------------------------------------------------------------------------------------

ONE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\n"


def names(*filenames: Path | str) -> list[tuple[str, str]]:
    return [(each.body["metadata"]["name"], each.where) for each in read_manifests(map(str, filenames))]


def test_manifests_of_files_folders_documents_and_lists_are_one_sequence(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(ONE.replace("NAME", "a") + "---\n---\n" + ONE.replace("NAME", "b"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "z.json").write_text('{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "z"}}')
    items = "".join(f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}\n" for name in ("c", "d"))
    (folder / "list.yml").write_text(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    (folder / "notes.txt").write_text("not a manifest")
    assert names(file, folder) == [
        ("a", f"{file}, document 1"),
        ("b", f"{file}, document 3"),
        ("c", f"{folder}/list.yml, item 1"),
        ("d", f"{folder}/list.yml, item 2"),
        ("z", f"{folder}/z.json"),
    ]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(ONE.replace("NAME", "a")))
    assert names("-") == [("a", "stdin")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no objects in"),
        ("a: [", "is not YAML"),
        ("just words", "it needs apiVersion and kind"),
        ("kind: Pod\nmetadata: {name: a}", "it needs apiVersion and kind"),
        ("apiVersion: v1\nkind: Pod", "the Pod has no metadata.name"),
        (ONE.replace("NAME", "a") + "---\nkind: Pod", "document 2 is no manifest"),
        ("apiVersion: v1\nkind: PodList\nitems: [1]", "item 1 is no manifest"),
        ("!!python/object:os.system {}", "is not YAML"),
    ],
)
def test_a_file_that_is_no_manifest_is_named_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(BadRequest, match=why) as caught:
        names(file)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nowhere\.yaml cannot be read: No such file"):
        names(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadRequest, match="it is no text"):
        names(tmp_path / "binary.yaml")


# -- resource types --------------------------------------------------------------------------------


def resource(plural: str, kind: str, **rest: Any) -> dict[str, Any]:
    return {
        "resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["get", "list"], **rest,
    }  # fmt: skip


def group(name: str, *resources: dict[str, Any], versions: tuple[str, ...] = ("v1",)) -> dict[str, Any]:
    return {"metadata": {"name": name}, "versions": [{"version": each, "resources": resources} for each in versions]}


DISCOVERED: list[dict[str, Any]] = [
    {
        "items": [
            group(
                "",
                resource("pods", "Pod", shortNames=["po"], categories=["all"], singularResource="pod"),
                resource("nodes", "Node", scope="Cluster", shortNames=["no"]),
                resource("events", "Event"),
                resource("bindings", "Binding", verbs=["create"]),
            )
        ]
    },
    {
        "items": [
            group("apps", resource("deployments", "Deployment", shortNames=["deploy"], categories=["all"])),
            group("events.k8s.io", resource("events", "Event"), versions=("v1", "v1beta1")),
        ]
    },
]


def one(word: str) -> ResourceType:
    (found,) = catalog_of(DISCOVERED).resolve(word)
    return found


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("pods", "pod"), ("pod", "pod"), ("po", "pod"), ("Pod", "pod"), ("PODS", "pod"),
        ("deploy", "deployment.apps"), ("deployments.apps", "deployment.apps"), ("deploy.v1.apps", "deployment.apps"),
        ("events", "event"), ("events.events.k8s.io", "event.events.k8s.io"),
    ],
)  # fmt: skip
def test_a_type_has_many_words_and_the_core_group_wins(word: str, label: str) -> None:
    assert one(word).label == label


def test_a_category_names_its_members_and_an_unknown_word_is_an_error() -> None:
    catalog = catalog_of(DISCOVERED)
    assert [each.plural for each in catalog.resolve("all")] == ["pods", "deployments"]
    for word in ("bindings", "nonsense"):
        with pytest.raises(NotFound, match="kedge get --types"):
            catalog.resolve(word)


def test_paths_are_quoted_and_a_cluster_kind_has_no_namespace() -> None:
    assert one("pods").path("a/b", "x y", "log") == "/api/v1/namespaces/a%2Fb/pods/x%20y/log"
    assert one("nodes").path("ignored", "n") == "/api/v1/nodes/n"
    assert one("deploy").path("default") == "/apis/apps/v1/namespaces/default/deployments"
    assert one("events.events.k8s.io").version == "v1"


def test_a_manifest_of_another_version_gets_the_one_that_is_served() -> None:
    catalog = catalog_of(DISCOVERED)
    assert catalog.of_manifest({"apiVersion": "apps/v1", "kind": "Deployment"}).plural == "deployments"
    with pytest.raises(NotFound, match=r"^the server has no kind 'Deployment' in 'apps/v1beta1': use apps/v1"):
        catalog.of_manifest({"apiVersion": "apps/v1beta1", "kind": "Deployment"})
    with pytest.raises(NotFound, match="kedge get --types"):
        catalog.of_manifest({"apiVersion": "x/v1", "kind": "Thing"})


def test_a_server_without_types_has_none() -> None:
    assert Catalog(()).types == ()
    assert catalog_of([{}]).types == ()


# -- drain -----------------------------------------------------------------------------------------

NO_OPTIONS = {"ignore_daemonsets": False, "force": False, "delete_emptydir_data": False}


def pod(name: str, owner: str = "ReplicaSet", *, phase: str = "Running", scratch: bool = False) -> dict[str, Any]:
    owners = [{"kind": owner, "controller": True}] if owner else []
    return {
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"volumes": [{"name": "v", "emptyDir": {}}] if scratch else None},
        "status": {"phase": phase},
    }


def chosen(*pods: dict[str, Any], **options: bool) -> list[str]:
    return [each["metadata"]["name"] for each in plan_drain(pods, {**NO_OPTIONS, **options})]


def test_pods_of_controllers_are_evicted() -> None:
    assert chosen(pod("a"), pod("b", "Job")) == ["a", "b"]
    assert chosen() == []


@pytest.mark.parametrize(
    ("found", "option", "evicted"),
    [
        (pod("x", "DaemonSet"), "ignore_daemonsets", ["a"]),
        (pod("x", ""), "force", ["a", "x"]),
        (pod("x", scratch=True), "delete_emptydir_data", ["a", "x"]),
    ],
)
def test_a_pod_that_would_lose_something_needs_its_option(
    found: dict[str, Any], option: str, evicted: list[str]
) -> None:
    with pytest.raises(Terminal, match=f"nothing was evicted: x .*--{option.replace('_', '-')}"):
        chosen(pod("a"), found)
    assert chosen(pod("a"), found, **{option: True}) == evicted


def test_a_pod_that_has_ended_loses_nothing() -> None:
    assert chosen(pod("a", "", phase="Succeeded"), pod("b", phase="Failed", scratch=True)) == ["a", "b"]


def test_every_pod_that_needs_an_option_is_named_at_once() -> None:
    with pytest.raises(Terminal) as caught:
        chosen(pod("a", "", scratch=True), pod("b", "DaemonSet"))
    for text in ("a has no controller", "a has emptyDir data", "b belongs to a DaemonSet"):
        assert text in str(caught.value)


# -- rollout ---------------------------------------------------------------------------------------


def deployment(*, generation: int = 2, observed: int = 2, wanted: int = 3, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "generation": generation},
        "spec": {"replicas": wanted},
        "status": {"observedGeneration": observed, **status},
    }


@pytest.mark.parametrize(
    ("found", "said", "done"),
    [
        (deployment(observed=1, replicas=3, updatedReplicas=3, availableReplicas=3), "to be observed", False),
        (deployment(replicas=3, updatedReplicas=1, availableReplicas=3), "1 out of 3 new replicas", False),
        (deployment(replicas=5, updatedReplicas=3, availableReplicas=5), "2 old replicas are pending", False),
        (deployment(replicas=3, updatedReplicas=3, availableReplicas=2), "2 of 3 updated replicas are avail", False),
        (deployment(replicas=3, updatedReplicas=3, availableReplicas=3), "successfully rolled out", True),
        (deployment(wanted=0), "successfully rolled out", True),
        ({"metadata": {"name": "web", "generation": 1}, "spec": {}}, "to be observed", False),
    ],
)
def test_the_state_of_a_rollout(found: dict[str, Any], said: str, done: bool) -> None:
    text, is_done = rollout_state(found)
    assert said in text
    assert is_done is done


def test_a_rollout_past_its_deadline_is_an_error_with_a_next_step() -> None:
    late = deployment(conditions=[{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}])
    with pytest.raises(Terminal, match="exceeded its progress deadline: `kedge why web`"):
        rollout_state(late)
