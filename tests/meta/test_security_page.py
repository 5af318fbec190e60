"""`docs/security.md` has the rights of the roles in the source."""

from __future__ import annotations

from pathlib import Path

from tests.kit.component_rights import with_table

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_table_of_rights_is_made_from_the_roles() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run python -m tests.kit.component_rights docs/security.md"
