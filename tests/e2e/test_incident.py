"""An incident of a cluster of real processes is recorded into one file, and replayed from the file alone."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import MANIFEST, down_nodes, until
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.encryption import PLANTED, forms_of

from kedge.api.objects import Object
from kedge.cli.incidents.incident_file import summary_of, write_sections
from kedge.kept import write_kept
from kedge.observe.readers.recording import Recording, read_recording
from kedge.observe.records import CacheRead

pytestmark = pytest.mark.slow

SECRET = f"""
apiVersion: v1
kind: Secret
metadata: {{name: planted}}
stringData: {{password: {PLANTED}}}
"""


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with running_server(tmp_path / "state") as server:
        found = Parts(server, tmp_path)
        try:
            yield found
        finally:
            found.stop()
            down_nodes(server)


def kedge(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_an_incident_of_separate_processes_is_replayed_from_its_file(parts: Parts, tmp_path: Path) -> None:
    server, at = parts.server, ("--state", str(parts.server.state))
    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    assert "end it with: kedge incident stop first" in kedge("incident", "start", "--name", "first", *at)
    server.kubectl("apply", "-f", "-", stdin=SECRET)
    server.kubectl("create", "secret", "generic", "another", f"--from-literal=token={PLANTED[::-1]}")
    server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    parts.kill("scheduler")
    parts.start("scheduler")
    server.kubectl("scale", "deployment/web", "--replicas=4")
    server.kubectl("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=4", "--timeout=90s", timeout_s=100)
    assert "open" in kedge("incident", "list", *at)
    file = tmp_path / "first.kedge"
    printed = kedge("incident", "stop", "--out", str(file), "--within", "10s", *at)

    components = {line.split("-")[0].strip() for line in printed.splitlines() if " decisions, " in line}
    assert components >= {"controllers", "scheduler", "agent", "server"}
    assert "missing: scheduler-" in printed  # the run that was killed
    data = file.read_bytes()
    secrets = held_secrets(server)
    assert secrets >= {PLANTED, PLANTED[::-1]}
    assert not [form for secret in secrets for form in forms_of(secret) if form in data]
    found = read_recording(file)
    attempts = [each for each in found.decisions if each.scheduling is not None]
    assert len({each.process for each in attempts}) == 2, "attempts of both runs of the scheduler"

    replayed = kedge("replay", str(file))
    assert "\nsame\n" in replayed
    summary = json.loads(kedge("incident", "show", str(file), "-o", "json"))
    assert summary["name"] == "first"
    for changed in tampered(file):
        assert "DIFFERS: " in kedge("replay", str(changed), code=3), changed.name
    assert "first" in kedge("incident", "list", *at)
    kedge("incident", "delete", "first", *at)
    assert "no incident is open" in kedge("incident", "list", *at)


def held_secrets(server: ServerProcess) -> set[str]:
    """Every value of every Secret of the cluster, long enough not to be in a file by chance."""
    found = json.loads(server.kubectl("get", "secrets", "-A", "-o", "json"))["items"]
    values = (base64.b64decode(value) for each in found for value in each.get("data", {}).values())
    return {value.decode() for value in values if len(value) >= 8 and value.isascii()}


def test_an_incident_reaches_back_to_before_its_start(parts: Parts, tmp_path: Path) -> None:
    server, at = parts.server, ("--state", str(parts.server.state))
    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    kedge("incident", "start", "--name", "late", "--since", "10m", *at)
    server.kubectl("scale", "deployment/web", "--replicas=4")
    server.kubectl("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=4", "--timeout=90s", timeout_s=100)
    file = tmp_path / "late.kedge"
    kedge("incident", "stop", "late", "--out", str(file), "--within", "60s", *at)
    found = read_recording(file)
    deployed = next(each for each in found.commits if any(one.key.kind == "Deployment.apps" for one in each.written))
    reached = [each for each in found.decisions if each.kept.endswith("reached back")]
    assert reached
    assert min(each.began for each in found.decisions) < deployed.at
    kedge("replay", str(file))
    # Every decision that wrote a version before the start is there. One that wrote at the end may end after it.
    window = next(each for each in found.commits if any("RecordingWindow" in one.key.kind for one in each.written))
    before = [one for each in found.commits if each.revision < window.revision for one in each.written]
    assert {one.origin.decision for one in before} - {""} <= {each.id for each in found.decisions}


def tampered(file: Path) -> Iterator[Path]:
    """The file with one recorded input changed, in every kind of place that has inputs."""
    for name, change in (("read", change_read), ("commit", change_commit), ("reply", change_reply)):
        found = read_recording(file)
        summary = summary_of(found)
        assert summary is not None
        change(found)
        path = file.with_name(f"{name}.kedge")
        write_kept(path, write_sections(summary, found))
        yield path


def other_version(found: Object) -> Object:
    value = found.value.replace(b'"replicas":', b'"replicaz":').replace(b'"web', b'"wob')
    return Object(found.kind, found.key, value, revision=found.revision, created=found.created, origin=found.origin)


def change_read(recording: Recording) -> None:
    """A version that a controller read from its cache."""
    for decision in recording.decisions:
        for number, step in enumerate(decision.steps):
            if isinstance(step, CacheRead) and step.objects and step.objects[0].key.kind == "Deployment.apps":
                first, *others = step.objects
                decision.steps[number] = msgspec.structs.replace(step, objects=(other_version(first), *others))
                return
    raise AssertionError("no decision read a Deployment")


def change_commit(recording: Recording) -> None:
    """A version in the history of the store."""
    for number, commit in enumerate(recording.commits):
        if any(each.key.kind == "ReplicaSet.apps" for each in commit.written):
            written = tuple(map(other_version, commit.written))
            recording.commits[number] = commit._replace(written=written)
            return
    raise AssertionError("no ReplicaSet was written")


def change_reply(recording: Recording) -> None:
    """The node that a bind was answered with."""
    for decision in recording.decisions:
        for number, step in enumerate(decision.steps):
            if getattr(step, "verb", "") == "bind":
                decision.steps[number] = msgspec.structs.replace(step, revision=step.revision + 1)  # type: ignore[union-attr]
                return
    raise AssertionError("no pod was bound")
