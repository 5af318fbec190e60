"""The facts of an audit record follow from a request and its reply."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import CONFIG_MAP, asynchronous, config_map, make_world

from kedge.api.audit import audit_facts
from kedge.api.requests import Create, Delete, DeleteOptions, Get, GetOptions, Patch, Update, WriteOptions
from kedge.errors import BadRequest, Conflict
from kedge.keys import Key, Origin

SETTINGS = Key("ConfigMap", "default", "settings")
BY_ALICE = WriteOptions(caller="alice", origin=Origin("op-1", "deployment:p-1:7"))


@asynchronous
async def test_a_write_has_its_user_decision_operation_and_both_revisions() -> None:
    world = await make_world()
    create = Create(CONFIG_MAP, config_map(a="1"), "default", BY_ALICE)
    made = await world.service.send(create)
    facts = audit_facts(create, made)
    assert (facts.user, facts.decision, facts.operation, facts.verb) == ("alice", "deployment:p-1:7", "op-1", "create")
    assert (facts.key, facts.outcome, facts.code) == (SETTINGS, "done", 200)
    assert (facts.revision_before, facts.revision) == (0, made.object.revision)
    patch = Patch(
        SETTINGS,
        {"metadata": {"resourceVersion": str(made.object.revision)}, "data": {"a": "2"}},
        options=WriteOptions(),
    )
    changed = await world.service.send(patch)
    facts = audit_facts(patch, changed)
    assert (facts.revision_before, facts.revision) == (made.object.revision, changed.object.revision)
    delete = Delete(SETTINGS, DeleteOptions(revision=changed.object.revision))
    facts = audit_facts(delete, await world.service.send(delete))
    assert (facts.revision_before, facts.removed) == (changed.object.revision, True)


def test_a_failure_has_its_name_and_code_and_no_revision() -> None:
    update = Update(SETTINGS, {"metadata": {"resourceVersion": "5"}}, "", BY_ALICE)
    facts = audit_facts(update, None, Conflict("it has changed", key=SETTINGS, revision=9))
    assert (facts.outcome, facts.code, facts.revision_before, facts.revision) == ("Conflict", 409, 5, 0)


@pytest.mark.parametrize("body", [
    {"metadata": {"resourceVersion": "9" * 5_000}},
    b'{"metadata":{"na\xffme":"a"}}',
    b'{"data":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
])  # fmt: skip
def test_a_body_that_names_no_version_has_no_revision(body: Any) -> None:
    assert audit_facts(Patch(SETTINGS, body, options=BY_ALICE), None, BadRequest("no")).revision_before == 0


@asynchronous
async def test_fields_for_a_log_line_leave_out_what_is_empty() -> None:
    world = await make_world()
    made = await world.service.create(CONFIG_MAP, config_map(a="1"))
    read = Get(SETTINGS, GetOptions(caller="bob"))
    fields = audit_facts(read, await world.service.send(read)).fields()
    assert fields == {
        "user": "bob",
        "verb": "get",
        "key": "ConfigMap/default/settings",
        "outcome": "done",
        "code": 200,
        "revision": made.object.revision,
    }
