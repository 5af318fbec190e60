"""`docs/operations.md` lists every write of the server that answers no request and so has no audit entry."""

from __future__ import annotations

import re
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "src" / "kedge" / "server" / "service"
PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
OWN_WRITE = re.compile(r"\bwrites\.(?:create|patch|update)\(core|\bdeletion\.delete\(core|\bcore\.delete_all\(")
ROWS = {
    "access/default_roles.py": "default roles and bindings",
    "access/aggregation.py": "rules of aggregating ClusterRoles",
    "credentials/default_accounts.py": "ServiceAccount `default`",
    "credentials/expiry.py": "expired bootstrap tokens",
    "credentials/key_record.py": "record of the shared keys",
    "event_expiry.py": "expired Events",
}
"""Modules that write by themselves, and the beginning of their row."""
NO_ROW = {
    "credentials/approvals.py": "a part of the request that approves",
    "operations.py": "operation ids are no objects of the API",
}


def test_each_write_of_the_server_itself_is_in_the_table() -> None:
    found = {
        str(path.relative_to(SERVICE)) for path in SERVICE.rglob("*.py") if OWN_WRITE.search(path.read_text())
    }  # fmt: skip
    assert found == {*ROWS, *NO_ROW}, "add the write to the table below 'These writes are of the server itself'"


def test_the_table_has_a_row_for_each() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("These writes are of the server itself")[2]
    for module, begins in ROWS.items():
        assert f"\n| {begins}" in table, f"no row about the writes of {module}"
