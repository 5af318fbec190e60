"""The work of `kedge get`: lists as tables or in full. `object_watch` has the watches that go on from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from kedge.cli.resources.arguments import check_one_source, check_path, has_names
from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.object_watch import TypeWatch
from kedge.cli.resources.output import TABLE, check_output, format_rows, format_table, print_objects
from kedge.cli.resources.session import Session, references
from kedge.cli.resources.sort_order import sorted_by
from kedge.cli.resources.targets import Target, manifest_targets
from kedge.errors import NotFound

Row = TypeVar("Row")
_WATCH_ONE = "--watch follows one type or one object: name one"


def check_listing(words: Sequence[str], filenames: Sequence[str], options: Mapping[str, Any]) -> None:
    """Arguments and options of `kedge get` that go together.

    Raises:
        UsageError: some do not.
    """
    check_output(options["output"])
    check_one_source(words, filenames)
    if options["sort_by"]:
        check_path(options["sort_by"])
    narrowed = options["selector"] or options["field_selector"] or options["everywhere"]
    if narrowed and (filenames or has_names(words)):
        raise click.UsageError("a name goes with neither selectors nor -A: leave out the name or the others")
    if options["watch"] or options["watch_only"]:
        if options["sort_by"]:
            raise click.UsageError("changes are printed as they come: leave out --watch or --sort-by")
        if len(words) > (1 if any("/" in word for word in words) else 2) or "," in "".join(words[:1]):
            raise click.UsageError(_WATCH_ONE)
    elif options["output_watch_events"]:
        raise click.UsageError("--output-watch-events goes with --watch or --watch-only: add one of both")


async def print_types(session: Session) -> None:
    rows = [
        [each.plural, ",".join(each.short_names), each.api_version, str(each.namespaced).lower(), each.kind]
        for each in (await session.catalog()).types
    ]
    click.echo(format_rows(["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"], rows))


class TypeListing:
    """One `kedge get`. `options` are those of the command."""

    def __init__(self, session: Session, query: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self._session = session
        self._query = dict(query)
        self._options = options
        self._tables = options["output"] in ("table", "wide")

    async def run(self, words: Sequence[str], filenames: Sequence[str] = ()) -> None:
        wanted = await self._wanted(words, filenames)
        kinds = list(dict.fromkeys(each.kind for each in wanted))
        named = {kind: [each for each in wanted if each.kind is kind and each.name] for kind in kinds}
        if self._options["watch"] or self._options["watch_only"]:
            if len(wanted) > 1:  # the types of a category, or the objects of a manifest
                raise click.UsageError(_WATCH_ONE)
            await TypeWatch(self._session, self._query, self._options).run(wanted[0])
        elif self._tables:
            await self._print_tables(kinds, named)
        else:
            await self._print_objects(kinds, named)

    async def _wanted(self, words: Sequence[str], filenames: Sequence[str]) -> list[Target]:
        """Objects, and types, which are targets without a name."""
        if not filenames:
            here = "" if self._options["everywhere"] else self._session.namespace
            return [Target(kind, here, name) for kind, name in await references(self._session, words)]
        return await manifest_targets(self._session, filenames, recursive=self._options["recursive"])

    async def _print_tables(self, kinds: Sequence[ResourceType], named: Mapping[ResourceType, list[Target]]) -> None:
        printed = 0
        for kind in kinds:
            here = "" if self._options["everywhere"] else self._session.namespace
            tables = [await self._table(each) for each in named[kind] or [Target(kind, here, "")]]
            found = [table for table in tables if table is not None and table.get("rows")]
            if not found:
                continue
            if printed:
                click.echo("")
            rows = self._sorted([row for table in found for row in table["rows"]], lambda row: row["object"])
            definitions = found[0]["columnDefinitions"]
            click.echo(format_table(kind, {"rows": rows}, definitions, self._options, several=len(kinds) > 1))
            printed += 1
        if not printed and not any(named.values()):
            namespaced = any(kind.namespaced for kind in kinds) and not self._options["everywhere"]
            where = f" in {self._session.namespace} namespace" if namespaced else ""
            click.echo(f"No resources found{where}.", err=True)

    async def _table(self, target: Target) -> dict[str, Any] | None:
        path = self._session.path(target.kind, target.name, namespace=target.namespace)
        try:
            whole = {"includeObject": "Object"} if self._options["sort_by"] else {}
            table: dict[str, Any] = await self._session.rest.call(
                "GET", path, query={**self._query, **whole}, accept=TABLE
            )
        except NotFound:
            if self._options["ignore_not_found"] and target.name:
                return None
            raise
        return table

    async def _print_objects(self, kinds: Sequence[ResourceType], named: Mapping[ResourceType, list[Target]]) -> None:
        found: list[tuple[ResourceType, Mapping[str, Any]]] = []
        for kind in kinds:
            for each in named[kind]:
                body = await self._session.find(kind, each.name, each.namespace)
                if body is not None:
                    found.append((kind, body))
                elif not self._options["ignore_not_found"]:
                    raise NotFound(
                        f'{kind.plural} "{each.name}" not found: `kedge get {kind.plural}` lists those there are'
                    )
            if not named[kind]:
                listed = await self._session.list(kind, self._query, everywhere=self._options["everywhere"])
                found += [(kind, body) for body in listed]
        found = self._sorted(found, lambda pair: pair[1])
        single = sum(map(len, named.values())) == 1
        if found or not any(named.values()):
            print_objects(self._options["output"], found, single=single)

    def _sorted(self, rows: list[Row], document: Callable[[Row], Mapping[str, Any]]) -> list[Row]:
        """Rows in the order of `--sort-by`; as the server has them without it."""
        if not self._options["sort_by"]:
            return rows
        return sorted_by(self._options["sort_by"], rows, document)
