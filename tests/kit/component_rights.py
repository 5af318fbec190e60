"""The table of `docs/security.md`: the rights of each component, made from the default roles.

`python -m tests.kit.component_rights docs/security.md` writes it again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kedge.api.views import PolicyRule
from kedge.cli.controller_identities import USER_PREFIX, controller_roles
from kedge.server.service.access.role_table import DEFAULT_ROLES, DefaultRole

BEGIN, END = "<!-- rights: made by tests/kit/component_rights.py -->", "<!-- end of rights -->"
_TABLE = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)
_COMPONENTS = ("system:node", "kedge:", "system:monitoring", USER_PREFIX)


def rights_table() -> str:
    """One row a role."""
    rows = ["| role | bound to | rights |", "|---|---|---|"]
    for role in (*DEFAULT_ROLES, *controller_roles()):
        if role.name.startswith(_COMPONENTS):
            rows.append(f"| `{role.name}` | {_bound_to(role)} | {_rights(role)} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with its table made from the roles."""
    return _TABLE.sub(lambda _: f"{BEGIN}\n{rights_table()}\n{END}", page)


def _bound_to(role: DefaultRole) -> str:
    bound = [*(f"group `{each}`" for each in role.groups), *(f"user `{each}`" for each in role.users)]
    return ", ".join(bound) or "no one by default"


def _rights(role: DefaultRole) -> str:
    where = f" in `{role.namespace}`" if role.namespace else ""
    return "; ".join(_rule(each) + where for each in role.rules)


def _rule(rule: PolicyRule) -> str:
    if rule.non_resource_urls:
        return f"{', '.join(rule.verbs)} {', '.join(f'`{each}`' for each in rule.non_resource_urls)}"
    groups = [each for each in rule.api_groups if each]
    suffix = f".{groups[0]}" if groups and groups[0] != "*" else ""
    if rule.resources == ("*",):
        things = "every kind"
    else:
        things = ", ".join(f"`{each}{suffix}`" for each in rule.resources)
    return f"{', '.join(rule.verbs)} {things}{_named(rule.resource_names)}"


def _named(names: tuple[str, ...]) -> str:
    if len(names) > 1:
        return f" of {len(names)} names: the users of controllers"
    return f" of the name `{names[0]}`" if names else ""


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
