"""The reader of the audit log, and `kedge audit`: entries by decision, user, object and time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.kit.access import ADA, ADMIN
from tests.kit.audit import METADATA, audited_api, entries
from tests.kit.loops import on_loop

from kedge.cli import main
from kedge.errors import NotFound
from kedge.server.audit import AuditGap, AuditReader, encode_gap

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
SPEC = {"containers": [{"name": "main", "image": "web:1", "command": ["true"]}]}


@on_loop
async def write_log(folder: Path) -> None:
    async with audited_api(folder, METADATA) as api:
        for name in ("web", "db"):
            pod = {"metadata": {"name": name}, "spec": SPEC}
            await api.send(ADMIN, "POST", PODS, pod, f"Kedge-Decision: replicaset:p-1:{name}")
        await api.send(ADA, "GET", f"{PODS}/web")
        await api.send(ADMIN, "GET", f"{PODS}/web", None, "Impersonate-User: ada")
        await api.send(ADMIN, "GET", "/metrics")


@on_loop
async def write_deletes(folder: Path) -> None:
    async with audited_api(folder, METADATA) as api:
        for name in ("a", "b"):
            await api.send(ADMIN, "POST", MAPS, {"metadata": {"name": name}})
        await api.send(ADMIN, "DELETE", MAPS)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("state")
    write_log(found / "audit")
    return found


def audit(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", "--state", str(state), *arguments])


def shown(state: Path, *arguments: str) -> list[tuple[str, str]]:
    """User and object of each line."""
    lines = audit(state, *arguments, "-o", "json").output.splitlines()
    found = [json.loads(line) for line in lines]
    return [(each["user"]["username"], each.get("objectRef", {}).get("name", each["requestURI"])) for each in found]


def test_entries_are_found_by_decision_user_and_object(state: Path) -> None:
    assert shown(state) == [
        ("admin", "web"), ("admin", "db"), ("ada", "web"), ("admin", "web"), ("admin", "/metrics"),
    ]  # fmt: skip
    assert shown(state, "--decision", "replicaset:p-1:db") == [("admin", "db")]
    assert shown(state, "--user", "ada") == [("ada", "web"), ("admin", "web")]
    assert shown(state, "--object", "pod/default/db") == [("admin", "db")]
    assert shown(state, "--object", "pod/db") == [("admin", "db")]
    assert len(shown(state, "--object", "po")) == 4
    assert shown(state, "--object", "pod/other/db") == []
    assert shown(state, "--object", "node/db") == []
    assert shown(state, "--since", "1h") == shown(state)


def test_a_deletecollection_is_found_by_the_objects_that_it_deleted(tmp_path: Path) -> None:
    write_deletes(tmp_path / "audit")
    assert shown(tmp_path, "--object", "configmap/default/a") == [("admin", "a"), ("admin", MAPS)]
    assert shown(tmp_path, "--object", "configmap/other/a") == []
    line = audit(tmp_path, "--object", "configmap/a").output.splitlines()[-1]
    assert "configmaps/default (2 objects)" in line


def test_an_entry_before_the_time_is_left_out(state: Path) -> None:
    assert entries(state / "audit", since=datetime.now(UTC) + timedelta(hours=1)) == []


def test_the_table_has_a_line_for_each_entry(state: Path) -> None:
    done = audit(state, "--object", "pod/default/web")
    assert done.exit_code == 0, done.output
    head, created, refused, impersonated = done.output.splitlines()
    assert head.split() == ["TIME", "USER", "VERB", "OBJECT", "CODE", "REVISIONS", "DECISION", "TOOK"]
    assert created.split()[2:6] == ["admin", "create", "pods/default/web", "201"]
    assert "replicaset:p-1:web" in created
    assert refused.split()[2:6] == ["ada", "get", "pods/default/web", "403"]
    assert "ada (by admin)" in impersonated
    assert audit(state, "--user", "none").output == "no entry matches\n"


def test_a_gap_is_shown_where_entries_were_dropped(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit-0000000001.log").write_bytes(encode_gap(7, datetime(2026, 1, 1, tzinfo=UTC)))
    (gap,) = AuditReader(tmp_path / "audit").read()
    assert isinstance(gap, AuditGap)
    assert gap.dropped == 7
    assert "7 entries were dropped" in audit(tmp_path).output
    assert json.loads(audit(tmp_path, "-o", "json").output)["dropped"] == 7


def test_a_line_that_was_cut_off_is_counted(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit-0000000001.log").write_bytes(b'{"kind":"Event","apiVers')
    assert "1 lines could not be read" in audit(tmp_path).output


def test_wrong_arguments_and_a_folder_without_a_log_are_one_sentence(tmp_path: Path, state: Path) -> None:
    with pytest.raises(NotFound, match="start the server with --audit-policy"):
        list(AuditReader(tmp_path / "audit").read())
    missing = audit(tmp_path)
    assert (missing.exit_code, "no audit log can be read" in missing.output) == (1, True)
    for wrong, message in (("thing/a", "there is no kind 'thing'"), ("pod/a/b/c", "write KIND/NAMESPACE/NAME")):
        refused = audit(state, "--object", wrong)
        assert refused.exit_code == 2
        assert message in refused.output
