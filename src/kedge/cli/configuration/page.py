"""The tables of `docs/configuration.md`, made from the fields.

`python -m kedge.cli.configuration.page` prints them; with a page as argument it rewrites them in that page.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from kedge.agent.process import keeper_bounds
from kedge.cli.configuration.fields import LIMITS, VERBS, ConfigField, config_fields, plain
from kedge.limits import Limits

BEGIN = "<!-- fields: made by `python -m kedge.cli.configuration.page` -->"
END = "<!-- end of fields -->"
_TABLES = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)
_FIXED = re.compile(r'^([A-Z_]+) = .+\n"""(.+)"""$', re.M)
_GROUP = re.compile(r"^    # -- (.+)$|^    (\w+): (?:int|float) = bound\(", re.M)


def config_tables() -> str:
    """A table for each verb, and one for each group of limits."""
    known = config_fields()
    parts = [f"### {verb}\n{_verb_table(known[verb].values())}" for verb in VERBS]
    for group, names in limit_groups().items():
        parts.append(f"### limits: {group}\n{_limit_table(known[LIMITS][name] for name in names)}")
    parts.append(f"### fixed: keeper\n{_fixed_table()}")
    return "\n\n".join(parts)


def _fixed_table() -> str:
    """The bounds of the keeper, which no file can change, each with the text that follows it in the source."""
    rows = ["| bound | value | reason |", "|---|---|---|"]
    for name, reason in _FIXED.findall(inspect.getsource(keeper_bounds)):
        rows.append(f"| `{name}` | {plain(getattr(keeper_bounds, name))} | {reason} |")
    return "\n".join(rows)


def limit_groups() -> dict[str, list[str]]:
    """Names of limits by the comment that opens their group in `kedge.limits`."""
    groups: dict[str, list[str]] = {}
    for title, name in _GROUP.findall(inspect.getsource(Limits)):
        if title:
            groups[title] = []
        else:
            next(reversed(groups.values())).append(name)
    return groups


def _verb_table(fields: Iterable[ConfigField]) -> str:
    rows = ["| field | default | bound | meaning |", "|---|---|---|---|"]
    for each in fields:
        default = each.shown_default or (f"`{plain(each.default)}`" if plain(each.default) else "none")
        meaning = f"{each.meaning}; `{each.environment}` wins over the file" if each.environment else each.meaning
        rows.append(f"| `{each.name}` | {default} | {each.bound} | {meaning} |")
    return "\n".join(rows)


def _limit_table(fields: Iterable[ConfigField]) -> str:
    rows = ["| field | default | unit | bound | meaning |", "|---|---|---|---|---|"]
    for each in fields:
        rows.append(f"| `{each.name}` | {plain(each.default)} | {each.unit} | {each.bound} | {each.meaning} |")
    return "\n".join(rows)


def with_tables(page: str) -> str:
    """The page with its tables made from the fields."""
    return _TABLES.sub(lambda _: f"{BEGIN}\n{config_tables()}\n{END}", page)


def main(arguments: list[str]) -> None:
    if not arguments:
        print(config_tables())
    for name in arguments:
        path = Path(name)
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
