"""The comparison of a log with the rights of components finds what it should, and its table names tests that exist."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.audit_join import is_call
from tests.e2e.used_rights import NEEDS, Right, component_roles, listed, rights, unused_rights

from kedge.api.access import CONTROLLERS, SCHEDULERS
from kedge.keys import Key
from kedge.observe.records import Call
from kedge.server.audit import AuditEvent
from kedge.server.audit.events import AuditedObject, AuditUser, ResponseStatus

TESTS = Path(__file__).parent.parent


def event(
    verb: str, resource: str, group: str, *, acting: str = "", outcome: str = "done", code: int = 200
) -> AuditEvent:
    name, _, part = resource.partition("/")
    return AuditEvent(
        kind="Event",
        api_version="audit.k8s.io/v1",
        level="Metadata",
        audit_id="a",
        stage="ResponseComplete",
        verb=verb,
        user=AuditUser("kedge", (group, "system:authenticated")),
        impersonated_user=AuditUser(acting) if acting else None,
        object_ref=AuditedObject(name, "default", "web", api_version="v1", subresource=part),
        response_status=ResponseStatus(code),
        received=datetime.now(UTC),
        at=datetime.now(UTC),
        annotations={"authorization.k8s.io/decision": "allow", "kedge.dev/outcome": outcome},
    )


def test_a_right_is_used_by_a_request_of_its_component_alone() -> None:
    every = {right for role in component_roles() for right, _ in rights(role)}
    assert unused_rights([]) == every
    binding = Right("kedge:scheduler", "create", "pods/binding")
    assert every - unused_rights([event("create", "pods/binding", SCHEDULERS)]) == {binding}
    assert every - unused_rights([event("create", "pods/binding", CONTROLLERS)]) == set()
    reads = every - unused_rights([event("watch", "services", CONTROLLERS)])
    assert reads == {Right("kedge:controllers", "watch", "*.*")}


def test_a_request_as_a_controller_uses_the_right_to_act_as_it() -> None:
    every = unused_rights([])
    used = every - unused_rights([event("patch", "pods", CONTROLLERS, acting="system:controller:job")])
    assert used == {Right("kedge:controller-identities", "impersonate", "users")}


def test_each_right_of_the_table_exists_and_so_does_its_test() -> None:
    assert listed(NEEDS) <= unused_rights([])
    for need in NEEDS:
        file, _, name = need.test.partition("::")
        assert re.search(rf"def {name}\(", (TESTS / file).read_text()), need.test
        assert need.why


def test_a_forbidden_write_joins_no_decision() -> None:
    """Not even if the decision has the same error: the component lacks a right."""
    pod = Key("Pod", "default", "web")
    calls = [Call("patch", pod, b"{}", "", "op", 0.0, 0.1, outcome) for outcome in ("Forbidden", "Conflict")]
    assert is_call(event("patch", "pods", CONTROLLERS, outcome="Conflict", code=409), calls)
    assert not is_call(event("patch", "pods", CONTROLLERS, outcome="Forbidden", code=403), calls)
