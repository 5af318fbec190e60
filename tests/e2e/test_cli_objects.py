"""The verbs that need no kubectl, on a cluster of real processes, compared with kubectl where both print the same."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.e2e.up_workload import MANIFEST, LocalUp, running_up, until
from tests.kit.api_server import running_server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    with running_up(LocalUp(tmp_path_factory.mktemp("up") / "state", "--nodes", "2", "--quiet")) as running:
        until(lambda: running.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
        running.kubectl("apply", "-f", "-", stdin=MANIFEST)
        running.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
        yield running


def cells(text: str) -> list[list[str]]:
    """Rows without ages, which move."""
    return [[cell for cell in line.split() if not re.fullmatch(r"(\d+[smhd])+", cell)] for line in text.splitlines()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "nodes"),
        ("get", "deploy,rs"),
        ("get", "deploy", "web"),
        ("get", "pods", "-A"),
        ("get", "ns", "--no-headers"),
        ("get", "pods", "-l", "app=web", "-L", "app"),
        ("get", "nodes", "-L", "kubernetes.io/hostname,nothing", "-L", "topology.kubernetes.io/zone", "--show-labels"),
        ("get", "pods", "-l", "app=web", "--field-selector", "spec.nodeName=node-1"),
    ],
)
def test_tables_are_those_of_kubectl(cluster: LocalUp, arguments: tuple[str, ...]) -> None:
    assert cells(cluster.kedge(*arguments)) == cells(cluster.kubectl(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "deploy/web", "-o", "jsonpath={.spec.replicas}"),
        ("get", "pods", "-o", 'jsonpath={range .items[*]}{.metadata.name}{"\\n"}{end}'),
        ("get", "pods", "-o", 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'),
        ("get", "deploy/web", "-o", "jsonpath={.spec.selector}"),
        ("get", "deploy,rs", "-o", "name"),
        ("get", "deploy/web", "-o", "json"),
        ("get", "deploy/web", "-o", "yaml"),
        ("get", "configmaps", "-o", "name"),
        ("get", "deploy", "nothing", "--ignore-not-found", "-o", "name"),
        ("rollout", "status", "deploy/web"),
        ("rollout", "status", "deploy/web", "--revision=1"),
        ("rollout", "history", "deploy/web"),
        ("scale", "deploy/web", "--replicas=2"),
        ("scale", "deploy/web", "--replicas=2", "--current-replicas=2"),
        ("wait", "deploy/web", "--for=condition=Available"),
        ("wait", "deploy/web", "--for=jsonpath={.spec.replicas}=2"),
    ],
)
def test_texts_are_those_of_kubectl(cluster: LocalUp, arguments: tuple[str, ...]) -> None:
    theirs = cluster.kubectl(*arguments).rstrip()
    ours = cluster.kedge(*arguments).rstrip()
    if arguments[-1] in ("json", "yaml"):
        assert yaml.safe_load(ours) == yaml.safe_load(theirs)
    elif "history" in arguments:
        assert ours.split() == theirs.split()
    else:
        assert ours == theirs


POD = """{
  "apiVersion": "v1",
  "kind": "Pod",
  "spec": {
    "nodeName": "node-2",
    "terminationGracePeriodSeconds": 0,
    "containers": [{"name": "main", "image": "x", "command": ["sleep", "100000"]}]
  }
}"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: colours, labels: {tone: soft}}
data: {sky: blue, grass: green}
---
# an empty document is skipped
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080, protocol: TCP}]}
"""


def test_apply_merges_three_ways_and_kubectl_goes_on_from_it(cluster: LocalUp, tmp_path: Path) -> None:
    first = cluster.kedge("apply", "-f", "-", stdin=CONFIG).splitlines()
    assert first == ["configmap/colours created", "service/web created"]
    again = cluster.kedge("apply", "-f", "-", stdin=CONFIG).splitlines()
    assert again == ["configmap/colours unchanged", "service/web unchanged"]
    assert cluster.kubectl("apply", "-f", "-", stdin=CONFIG).splitlines() == again

    cluster.kubectl("patch", "configmap", "colours", "--type=merge", "-p", '{"data": {"sea": "grey"}}')
    (tmp_path / "b.yaml").write_text(CONFIG.replace("grass: green", "sand: gold").replace("port: 80,", "port: 81,"))
    (tmp_path / "notes.txt").write_text("no manifest")
    changed = cluster.kedge("apply", "-f", str(tmp_path)).splitlines()
    assert changed == ["configmap/colours configured", "service/web configured"]
    data = json.loads(cluster.kedge("get", "cm/colours", "-o", "jsonpath={.data}"))
    assert data == {"sky": "blue", "sand": "gold", "sea": "grey"}, "one field of another writer stays, one is removed"
    assert cluster.kedge("get", "svc/web", "-o", "jsonpath={.spec.ports[*].port}") == "81"
    assert "unchanged" in cluster.kubectl("apply", "-f", str(tmp_path / "b.yaml"))

    said = cluster.kedge("delete", "-f", str(tmp_path)).splitlines()
    assert said == ['service "web" deleted', 'configmap "colours" deleted']
    assert cluster.kedge("get", "cm,svc", "-l", "tone=soft", "-o", "name") == ""


def test_one_bad_manifest_does_not_stop_the_others_and_the_exit_code_is_1(cluster: LocalUp) -> None:
    texts = [CONFIG.partition("---")[0].replace("colours", name) for name in ("Not_A_Name", "fine")]
    said = cluster.kedge("apply", "-f", "-", stdin="---".join(texts), code=1)
    assert "Not_A_Name" in said
    assert "1 objects were not applied" in said
    assert cluster.kedge("delete", "cm", "fine") == 'configmap "fine" deleted\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "deploy", "nothing"), ["nothing", "not found", "kedge get deployments"]),
        (("get", "pods", "nothing", "-n", "kube-system"), ["nothing", "kedge get pods -n kube-system"]),
        (("describe", "pod", "nothing"), ["nothing", "kedge get pods"]),
        (("logs", "nothing"), ["nothing", "kedge get pods"]),
        (("exec", "nothing", "--", "true"), ["nothing", "kedge get pods"]),
        (("scale", "deploy/nothing", "--replicas=1"), ["nothing", "kedge get deployments"]),
        (("get", "pods", "--sort-by", ".nothing"), [".nothing", "-o yaml"]),
        (("get", "nonsense"), ["nonsense", "kedge get --types"]),
        (("delete", "pod", "nothing"), ["nothing", "kedge get pods"]),
        (("scale", "cm/x", "--replicas=1"), ["ConfigMap", "Deployment"]),
        (("wait", "deploy/web", "--for=condition=Never", "--timeout=1s"), ["deployment.apps/web", "kedge why web"]),
        (("rollout", "undo", "deploy/web", "--to-revision=77"), ["77"]),
        (("rollout", "status", "deploy/web", "--revision=77"), ["revision 1 and not 77", "kedge rollout history"]),
        (("scale", "deploy", "-l", "app=nothing", "--replicas=1"), ["no object", "-l"]),
        (("drain", "-l", "no=node"), ["no=node", "kedge get nodes --show-labels"]),
        (("cordon", "no-such-node"), ["no-such-node", "kedge get nodes"]),
    ],
)
def test_an_error_is_one_sentence_that_names_the_object_and_the_next_step(
    cluster: LocalUp, arguments: tuple[str, ...], words: list[str]
) -> None:
    said = cluster.kedge(*arguments, code=1)
    assert len(said.strip().splitlines()) == 1, said
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "all", "--watch"), ["one type"]),
        (("get", "pods", "--context", "other"), ["other", "--context"]),
        (("rollout", "status", "pod/web"), ["Pod", "deployment/web"]),
    ],
)
def test_a_wrong_command_line_that_needs_a_server_to_be_seen_ends_with_2_too(
    cluster: LocalUp, arguments: tuple[str, ...], words: list[str]
) -> None:
    said = cluster.kedge(*arguments, code=2)
    assert len(said.strip().splitlines()) == 1, said
    for word in words:
        assert word in said


def test_an_unknown_kind_is_named_with_its_file_once(cluster: LocalUp) -> None:
    thing = "apiVersion: x/v1\nkind: Thing\nmetadata: {name: t}\n"
    for verb in ("apply", "delete"):
        said = cluster.kedge(verb, "-f", "-", stdin=thing, code=1).splitlines()[0]
        assert said.startswith("Error: stdin: the server has no kind 'Thing' in 'x/v1': `kedge get --types`"), said


def test_without_a_server_the_next_step_is_named(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "kedge", "get", "pods"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "kedge up" in done.stderr


def test_a_rollout_is_followed_undone_paused_and_restarted(cluster: LocalUp) -> None:
    manifest = MANIFEST.replace("name: web}", "name: roll}").replace("app: web", "app: roll")
    cluster.kedge("apply", "-f", "-", stdin=manifest)
    done = 'deployment "roll" successfully rolled out'
    assert done in cluster.kedge("rollout", "status", "deploy/roll", "--timeout=90s")
    cluster.kedge("apply", "-f", "-", stdin=manifest.replace("label-only", "second"))
    assert done in cluster.kedge("rollout", "status", "deploy/roll", "--timeout=90s")
    assert "second" in cluster.kedge("rollout", "history", "deploy/roll", "--revision=2")
    assert "rolled back" in cluster.kedge("rollout", "undo", "deploy/roll")
    assert cluster.kedge("get", "deploy/roll", "-o", "jsonpath={..image}") == "label-only"
    assert done in cluster.kedge("rollout", "status", "deploy/roll", "--timeout=90s")
    assert "paused" in cluster.kedge("rollout", "pause", "deploy/roll")
    assert "paused" in cluster.kedge("rollout", "undo", "deploy/roll", code=1)
    assert "`kedge rollout resume deployment/roll`" in cluster.kedge("rollout", "pause", "deploy/roll", code=1)
    assert "resumed" in cluster.kedge("rollout", "resume", "deploy/roll")
    assert "`kedge rollout pause deployment/roll`" in cluster.kedge("rollout", "resume", "deploy/roll", code=1)
    before = set(cluster.kedge("get", "pods", "-l", "app=roll", "-o", "name").split())
    assert "restarted" in cluster.kedge("rollout", "restart", "deploy/roll")
    assert done in cluster.kedge("rollout", "status", "deploy/roll", "--timeout=90s")
    until(lambda: not before & set(cluster.kedge("get", "pods", "-l", "app=roll", "-o", "name").split()), "new pods")
    said = cluster.kedge("delete", "deploy", "-l", "app=roll", "--cascade=foreground", "--timeout=60s")
    assert said == "" or "deleted" in said
    cluster.kedge("delete", "deploy", "roll", "--ignore-not-found", "--timeout=60s")


def test_a_node_is_cordoned_drained_and_used_again(cluster: LocalUp) -> None:
    assert cluster.kedge("cordon", "node-1") == "node/node-1 cordoned\n"
    assert cluster.kedge("cordon", "node-1") == "node/node-1 already cordoned\n"
    assert "SchedulingDisabled" in cluster.kedge("get", "node", "node-1")
    before = cluster.kedge("get", "pods", "--field-selector=spec.nodeName=node-1", "-o", "name").split()
    stdout, stderr = cluster.streams("drain", "node-1", "--ignore-daemonsets", "--timeout=60s")
    assert stdout == "node/node-1 drained\n"
    assert stderr.splitlines()[0] == "node/node-1 already cordoned"
    assert sorted(stderr.splitlines()[1:]) == sorted(f"{each} evicted" for each in before)
    assert cluster.kedge("get", "pods", "--field-selector=spec.nodeName=node-1", "-o", "name") == ""
    assert cluster.kedge("uncordon", "node-1") == "node/node-1 uncordoned\n"
    cluster.kedge("wait", "deploy/web", "--for=condition=Available", "--timeout=60s")


def test_nodes_and_pods_are_chosen_by_label(cluster: LocalUp) -> None:
    second = ("-l", "kubernetes.io/hostname=node-2")
    assert cluster.kedge("cordon", *second) == "node/node-2 cordoned\n"
    assert cluster.kedge("get", "node", "node-1", "-o", "jsonpath={.spec.unschedulable}") == ""
    text = json.loads(POD)
    for name, colour in (("leaves", "red"), ("stays", "blue")):
        body = {**text, "metadata": {"name": name, "labels": {"colour": colour}}}
        cluster.kedge("apply", "-f", "-", stdin=json.dumps(body))
        cluster.kedge("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=90s")
    stdout, stderr = cluster.streams("drain", *second, "--force", "--pod-selector=colour=red", "--timeout=90s")
    assert stdout == "node/node-2 drained\n"
    assert stderr == "node/node-2 already cordoned\npod/leaves evicted\n"
    assert cluster.kedge("get", "pods", "-l", "colour", "-o", "name") == "pod/stays\n"
    assert cluster.kedge("uncordon", *second) == "node/node-2 uncordoned\n"
    cluster.kedge("delete", "pod", "stays", "--now")


def test_progress_is_on_stderr_and_the_verdict_on_stdout(cluster: LocalUp) -> None:
    manifest = MANIFEST.replace("name: web}", "name: steps}").replace("app: web", "app: steps")
    paused = manifest.replace("replicas: 2", "replicas: 1\n  paused: true")
    cluster.kedge("apply", "-f", "-", stdin=paused)
    command = [sys.executable, "-m", "kedge", "rollout", "status", "deploy/steps", "--timeout=90s"]
    environment = cluster.client_environment
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as following:
        assert following.stderr is not None
        first = following.stderr.readline()
        assert first.startswith("Waiting for deployment")
        cluster.kedge("rollout", "resume", "deploy/steps")
        stdout, stderr = following.communicate(timeout=120)
    assert stdout == 'deployment "steps" successfully rolled out\n'
    assert all(line.startswith("Waiting for deployment") for line in stderr.splitlines()), stderr
    cluster.kedge("delete", "deploy/steps")


def test_objects_are_chosen_by_label_and_by_manifest(cluster: LocalUp, tmp_path: Path) -> None:
    body = yaml.safe_load(MANIFEST.replace("name: web}", "name: chosen}").replace("app: web", "app: chosen"))
    body["metadata"]["labels"] = {"tier": "chosen"}
    body["spec"]["replicas"] = 0
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "chosen.yaml").write_text(yaml.safe_dump(body))
    (tmp_path / "in" / "config.yaml").write_text(CONFIG.partition("---")[0])
    folder = str(tmp_path / "in")

    for run in ("client", "server"):
        arguments = ("apply", "-R", "-f", folder, f"--dry-run={run}")
        theirs = cluster.kubectl(*arguments).splitlines()
        assert cluster.kedge(*arguments).splitlines() == theirs
        assert sorted(line.split()[0] for line in theirs) == ["configmap/colours", "deployment.apps/chosen"]
    assert cluster.kedge("get", "-R", "-f", folder, "--ignore-not-found", "-o", "name") == ""
    assert cluster.kedge("apply", "-f", folder) == "configmap/colours created\n"
    assert "deployment.apps/chosen created" in cluster.kedge("apply", "-f", folder, "-R")
    changed = cluster.kedge(
        "apply",
        "-f",
        "-",
        "--dry-run=client",
        "-o",
        "jsonpath={.data.sky}",
        stdin=CONFIG.partition("---")[0].replace("blue", "red"),
    )
    assert changed == "red"
    assert cluster.kedge("get", "cm/colours", "-o", "jsonpath={.data.sky}") == "blue"

    chosen = ("get", "-R", "-f", folder)
    assert sorted(cells(cluster.kedge(*chosen))) == sorted(cells(cluster.kubectl(*chosen)))
    assert cluster.kedge(*chosen, "-o", "name").split() == cluster.kubectl(*chosen, "-o", "name").split()
    said = "deployment.apps/chosen scaled\n"
    assert cluster.kedge("scale", "deploy", "-l", "tier=chosen", "--replicas=1") == said
    assert cluster.kedge("get", "deploy/chosen", "-o", "jsonpath={.spec.replicas}") == "1"
    assert cluster.kedge("scale", "-f", f"{folder}/deep/chosen.yaml", "--replicas=0") == said
    assert cluster.kedge("get", "deploy/chosen", "-o", "jsonpath={.spec.replicas}") == "0"
    assert len(cluster.kedge("delete", "-R", "-f", folder).splitlines()) == 2


def test_describe_has_fields_conditions_and_events(cluster: LocalUp) -> None:
    text = cluster.kedge("describe", "deploy/web")
    for part in ("Name:         web", "Namespace:    default", "Labels:", "Replicas:  2", "Conditions:", "Available"):
        assert part in text, text
    assert "Events:" in text


def test_a_watch_prints_changes_as_they_happen(cluster: LocalUp) -> None:
    command = [sys.executable, "-m", "kedge", "get", "cm", "-w", "-l", "watched=yes"]
    with cluster.started(*command, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        manifest = CONFIG.partition("---")[0].replace("tone: soft", 'watched: "yes"').replace("colours", "seen")
        cluster.kedge("apply", "-f", "-", stdin=manifest)
        lines = [watching.stdout.readline().decode() for _ in range(2)]
        assert lines[0].split() == ["NAME", "DATA", "AGE"]
        assert lines[1].split()[:2] == ["seen", "2"]
        watching.stdout.close()
    cluster.kedge("delete", "cm/seen")


def test_a_watch_can_leave_out_the_list(cluster: LocalUp) -> None:
    body = CONFIG.partition("---")[0].replace("tone: soft", 'watched: "only"')
    cluster.kedge("apply", "-f", "-", stdin=body)
    command = [sys.executable, "-m", "kedge", "get", "cm", "--watch-only", "-l", "watched=only", "-o", "name"]
    with cluster.started(*command, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        # The watch starts at a moment unknown here: write until it reports one.
        made = 0
        while not select.select([watching.stdout], [], [], 1.0)[0]:
            made += 1
            assert made < 120
            cluster.kedge("apply", "-f", "-", stdin=body.replace("colours", f"later-{made}"))
        assert watching.stdout.readline().decode().startswith("configmap/later-")
        watching.stdout.close()
    cluster.kedge("delete", "cm", "-l", "watched=only")


def test_objects_are_sorted_by_a_field(cluster: LocalUp) -> None:
    for number in (10, 9, 100):
        text = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"sorted-{number}"}})
        body = {**json.loads(text), "data": {"size": f"{number}"}}
        body["metadata"]["labels"] = {"sorted": "yes"}
        cluster.kedge("apply", "-f", "-", stdin=json.dumps(body))
    chosen = ("get", "cm", "-l", "sorted=yes", "-o", "name", "--sort-by")
    names = [f"configmap/sorted-{number}" for number in (9, 10, 100)]
    assert cluster.kedge(*chosen, ".data.size").split() == names
    assert cluster.kedge(*chosen, "{.metadata.name}").split() == [names[1], names[2], names[0]]
    table = cluster.kedge("get", "cm", "-l", "sorted=yes", "--no-headers", "--sort-by=.data.size")
    assert [f"configmap/{line.split()[0]}" for line in table.splitlines()] == names
    assert cluster.kedge("get", "pods", "-o", "name", "-l", "none=none", "--sort-by=.metadata.name") == ""
    cluster.kedge("delete", "cm", "-l", "sorted=yes")


def test_usage_is_shown(cluster: LocalUp) -> None:
    until(lambda: "node-1" in _maybe(cluster, "top", "nodes"), "usage is reported", 60)
    header, *rows = cluster.kedge("top", "nodes").splitlines()
    assert header.split() == ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]
    assert len(rows) == 2

    until(lambda: _maybe(cluster, "top", "pods", "--no-headers").count("\n") == 2, "usage of both pods", 60)
    header, *rows = cluster.kedge("top", "pods").splitlines()
    assert header.split() == cluster.kubectl("top", "pods").splitlines()[0].split()
    names = sorted(cluster.kedge("get", "pods", "-l", "app=web", "-o", "name").split())
    assert sorted(f"pod/{row.split()[0]}" for row in rows) == names
    assert all(re.fullmatch(r"\S+ +\d+m +\d+Mi", row) for row in rows), rows
    whole = cluster.kedge("top", "pods", "--containers", "-l", "app=web").splitlines()
    assert whole[0].split() == cluster.kubectl("top", "pods", "--containers", "-l", "app=web").splitlines()[0].split()
    assert sorted(row.split()[1] for row in whole[1:]) == ["main", "main"]
    for kind in ("pods", "nodes"):
        for resource in ("cpu", "memory"):
            assert len(cluster.kedge("top", kind, f"--sort-by={resource}", "--no-headers").splitlines()) == 2
    alone = cluster.kedge("top", "pod", rows[0].split()[0], "--no-headers")
    assert alone.split()[0] == rows[0].split()[0]
    everywhere = cluster.kedge("top", "pods", "-A", "-l", "app=web").splitlines()
    assert everywhere[0].split()[0] == "NAMESPACE"
    assert {row.split()[0] for row in everywhere[1:]} == {"default"}


def _maybe(cluster: LocalUp, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *arguments],
        env=cluster.client_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_a_shell_completes_verbs_types_and_names(cluster: LocalUp) -> None:
    def suggestions(*words: str) -> list[str]:
        words_so_far, number = " ".join(["kedge", *words]), str(len(words))
        done = subprocess.run(
            [sys.executable, "-c", "from kedge.cli import main; main(prog_name='kedge')"],
            env={
                **cluster.client_environment,
                "_KEDGE_COMPLETE": "bash_complete",
                "COMP_WORDS": words_so_far,
                "COMP_CWORD": number,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert "describe" in suggestions("desc")
    until(lambda: "deployments" in suggestions("get", "depl"), "types are suggested")
    until(lambda: suggestions("get", "deployments", "we") == ["web"], "names are suggested")
    until(lambda: suggestions("get", "deploy/we") == ["deploy/web"], "names after a slash are suggested")


def on_terminal(cluster: LocalUp, *arguments: str, **environment: str) -> str:
    """The screen of a command that has a terminal."""
    master, slave = pty.openpty()
    inherited = {name: value for name, value in cluster.client_environment.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "kedge", *arguments]
    with subprocess.Popen(
        command, env={**inherited, **environment}, stdin=slave, stdout=slave, stderr=slave
    ) as running:
        os.close(slave)
        screen = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while data := os.read(master, 65536):
                screen += data
        assert running.wait(60) == 0, screen
    os.close(master)
    return screen.decode()


def test_a_terminal_has_colours_unless_no_color_is_set_and_a_pipe_has_none(cluster: LocalUp) -> None:
    arguments = ("get", "pods", "-l", "app=web")
    assert "\x1b[32mRunning" in on_terminal(cluster, *arguments)
    plain = on_terminal(cluster, *arguments, NO_COLOR="1")
    assert "Running" in plain
    assert "\x1b" not in plain
    assert "\x1b" not in cluster.kedge(*arguments)


def test_no_objects_are_no_data(cluster: LocalUp) -> None:
    assert cluster.kedge("get", "pods", "-n", "empty-space") == ""


# -- which server ----------------------------------------------------------------------------------


def test_the_chosen_context_answers_and_several_files_are_one(cluster: LocalUp, tmp_path: Path) -> None:
    """Namespaces by context on this cluster, another server by context, and entries in two files, as with kubectl."""
    with running_server(tmp_path / "other") as other:
        other.kubectl("create", "namespace", "only-there")
        here, there = (yaml.safe_load(each.kubeconfig.read_text()) for each in (cluster, other))
        for config, name in ((here, "here"), (there, "there")):
            config["clusters"][0]["name"] = config["users"][0]["name"] = name
            config["contexts"] = [{"name": name, "context": {"cluster": name, "user": name}}]
            config["current-context"] = name
        here["contexts"].append(
            {"name": "system", "context": {"cluster": "here", "user": "here", "namespace": "kube-system"}}
        )
        # The second file has another context of a name that the first has: the first wins.
        there["contexts"].append({"name": "system", "context": {"cluster": "there", "user": "there"}})
        files = [tmp_path / "first", tmp_path / "missing", tmp_path / "second"]
        files[0].write_text(yaml.safe_dump(here))
        files[2].write_text(yaml.safe_dump(there))
        listed = os.pathsep.join(map(str, files))

        def printed(*arguments: str) -> str:
            ours = cluster.kedge(*arguments, KUBECONFIG=listed)
            command = ["kubectl", *arguments]
            theirs = subprocess.run(
                command,
                env={**cluster.client_environment, "KUBECONFIG": listed},
                capture_output=True,
                text=True,
                check=True,
            )
            assert ours == theirs.stdout
            return ours

        assert "only-there" not in printed("get", "ns", "-o", "name")
        assert "only-there" in printed("get", "ns", "-o", "name", "--context", "there")
        deployment = ("get", "deploy", "web", "--ignore-not-found", "-o", "name")
        assert printed(*deployment, "--context=here") == "deployment.apps/web\n"
        assert printed(*deployment, "--context=system") == ""
        assert printed(*deployment, "--context=system", "-n", "default") == "deployment.apps/web\n"
        cluster.kedge("token", "create", "--user", "ada", KUBECONFIG=listed)
        assert "ada" in cluster.kedge("token", "list", KUBECONFIG=f"{tmp_path}/missing:{files[0]}")
        for first, last, url in ((files[0], files[2], cluster.url), (files[2], files[0], other.url)):
            component = subprocess.Popen(
                [sys.executable, "-m", "kedge", "scheduler", "--name", "aside"],
                env={**cluster.client_environment, "KUBECONFIG": f"{first}:{last}"},
                stderr=subprocess.PIPE,
                text=True,
            )
            assert component.stderr is not None
            assert component.stderr.readline() == f"scheduler uses {url}\n"
            component.terminate()
            component.communicate(timeout=60)
            assert component.returncode == 0


def test_a_recording_window_is_opened_narrowed_listed_and_closed(cluster: LocalUp) -> None:
    said = cluster.kedge(
        "record", "start", "incident", "--for", "5m", "--object", "deployment/web", "--reason", "alert"
    )
    assert said.startswith("incident records Deployment web until ")
    spec = json.loads(cluster.kubectl("get", "recwin", "incident", "-o", "json"))["spec"]
    assert spec["objects"] == [{"kind": "Deployment.apps", "namespace": "default", "name": "web"}]
    assert re.search(r"^incident +open ", cluster.kedge("record", "list"), re.MULTILINE)
    assert "every decision" in cluster.kedge("record", "start", "incident", "--for", "10m")
    (found,) = json.loads(cluster.kedge("record", "list", "-o", "json"))["items"]
    assert found["spec"]["objects"] == []
    assert "at most 24h" in cluster.kedge("record", "start", "--for", "48h", code=2)
    assert cluster.kedge("record", "stop", "incident") == "incident is closed\n"
    assert cluster.kedge("record", "list").startswith("no window is open by hand or by an alert\n\nat ")
    assert "not found" in cluster.kedge("record", "stop", "incident", code=1)
