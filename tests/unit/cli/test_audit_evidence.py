"""The audit log of a state folder as evidence: requests about some objects, and a log that is not there."""

from __future__ import annotations

from pathlib import Path

from tests.kit.access import ADA, ADMIN
from tests.kit.audit import METADATA, audited_api
from tests.kit.loops import on_loop

from kedge.cli.audit_evidence import NO_LOG, audit_evidence
from kedge.keys import Key
from kedge.server.audit import encode_gap

MAPS = "/api/v1/namespaces/default/configmaps"
MAP = Key("ConfigMap", "default", "m")


@on_loop
async def write_log(folder: Path) -> None:
    async with audited_api(folder, METADATA) as api:
        for name in ("m", "other"):
            await api.send(ADMIN, "POST", MAPS, {"metadata": {"name": name}})
        await api.send(ADMIN, "POST", MAPS, {"metadata": {"name": "m"}})
        await api.send(ADA, "DELETE", f"{MAPS}/m")
        await api.send(ADMIN, "GET", f"{MAPS}/m")
        await api.send(ADMIN, "DELETE", f"{MAPS}/m?dryRun=All")
        await api.send(ADMIN, "POST", "/api/v1/namespaces", {"metadata": {"name": "m"}})


def test_writes_and_refusals_of_an_object_are_found_without_reads_and_dry_runs(tmp_path: Path) -> None:
    write_log(tmp_path / "audit")
    found = audit_evidence(tmp_path, {MAP})
    assert [(each.user, each.verb, each.code, each.is_refused) for each in found.requests] == [
        ("admin", "create", 201, False),
        ("admin", "create", 409, True),
        ("ada", "delete", 403, True),
    ]
    assert found.requests[0].revision
    assert all(each.is_by_person for each in found.requests)
    assert found.coverage.startswith("the audit log has requests since ")
    assert "dropped" not in found.coverage
    (namespace,) = audit_evidence(tmp_path, {Key("Namespace", "", "m")}).requests
    assert namespace.verb == "create"


def test_of_inputs_only_the_changes_that_people_made_are_found(tmp_path: Path) -> None:
    write_log(tmp_path / "audit")
    (made,) = audit_evidence(tmp_path, (), changed={MAP}).requests
    assert (made.user, made.verb, made.changed) == ("admin", "create", True)


def test_a_gap_in_the_log_is_in_the_coverage(tmp_path: Path) -> None:
    write_log(tmp_path / "audit")
    (file,) = (tmp_path / "audit").iterdir()
    time = audit_evidence(tmp_path, {MAP}).requests[0].at
    with file.open("ab") as opened:
        opened.write(encode_gap(7, time))
    assert audit_evidence(tmp_path, {MAP}).coverage.endswith("without 7 that were dropped and 0 that cannot be read")


def test_a_missing_log_is_stated(tmp_path: Path) -> None:
    assert audit_evidence(tmp_path, {MAP}) == ((), NO_LOG)
    (tmp_path / "audit").mkdir()
    assert audit_evidence(tmp_path, {MAP}) == ((), NO_LOG)
