"""The work of `kedge get`: lists as tables or in full, and watches that go on from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.output import TABLE, check_output, format_rows, print_objects, table_cells
from kedge.cli.resources.session import Session, references
from kedge.cli.resources.sort_order import sorted_by
from kedge.cli.resources.targets import Target, manifest_targets
from kedge.errors import Compacted, NotFound, Terminal, Unavailable, from_status

_RECONNECT_S = 1.0
Row = TypeVar("Row")


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
        check_output(self._options["output"])
        wanted = await self._wanted(words, filenames)
        if any(each.name for each in wanted) and (self._query or self._options["everywhere"]):
            raise Terminal("a name goes with neither selectors nor -A: leave out the name or the others")
        kinds = list(dict.fromkeys(each.kind for each in wanted))
        named = {kind: [each for each in wanted if each.kind is kind and each.name] for kind in kinds}
        if self._options["watch"] or self._options["watch_only"]:
            if self._options["sort_by"]:
                raise Terminal("changes are printed as they come: leave out --watch or --sort-by")
            if len(kinds) > 1 or len(named[kinds[0]]) > 1:
                raise Terminal("--watch follows one type or one object: name one")
            await self._watch(wanted[0])
        elif self._tables:
            await self._print_tables(kinds, named)
        else:
            await self._print_objects(kinds, named)

    async def _wanted(self, words: Sequence[str], filenames: Sequence[str]) -> list[Target]:
        """Objects, and types, which are targets without a name."""
        if not filenames:
            here = "" if self._options["everywhere"] else self._session.namespace
            return [Target(kind, here, name) for kind, name in await references(self._session, words)]
        if words:
            raise Terminal("choose objects by manifest or by name, not both: leave out -f or the names")
        return await manifest_targets(self._session, filenames, recursive=self._options["recursive"])

    # -- once --------------------------------------------------------------------------------------

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
            click.echo(
                self._formatted(
                    kind, {"rows": rows}, found[0]["columnDefinitions"], header=True, several=len(kinds) > 1
                )
            )
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

    def _formatted(
        self,
        kind: ResourceType,
        table: Mapping[str, Any],
        definitions: Sequence[Mapping[str, Any]],
        *,
        header: bool,
        several: bool = False,
        widths: list[int] | None = None,
    ) -> str:
        names, rows = table_cells(
            table,
            definitions,
            wide=self._options["output"] == "wide",
            namespaces=self._options["everywhere"] and kind.namespaced,
            labels=self._options["show_labels"],
            label_columns=[name for each in self._options["label_columns"] for name in each.split(",")],
        )
        if several:
            place = 1 if self._options["everywhere"] and kind.namespaced else 0
            for row in rows:
                row[place] = f"{kind.label}/{row[place]}"
        return format_rows(names if header and not self._options["no_headers"] else None, rows, widths)

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

    # -- watch -------------------------------------------------------------------------------------

    async def _watch(self, target: Target) -> None:
        """Print the list, then each change. A stream that ends is opened again where it was."""
        if target.name:
            self._query["fieldSelector"] = f"metadata.name={target.name}"
        path = self._session.path(target.kind, namespace=target.namespace)
        widths: list[int] = []
        version = ""
        definitions: list[Any] = []
        while True:
            try:
                if not version:
                    version, definitions = await self._first(target.kind, path, definitions, widths)
                version = await self._changes(target.kind, path, version, definitions, widths)
            except Compacted:
                version = ""  # too long ago: list again
            except Unavailable:
                await asyncio.sleep(_RECONNECT_S)

    async def _first(self, kind: ResourceType, path: str, seen: list[Any], widths: list[int]) -> tuple[str, list[Any]]:
        table = await self._session.rest.call("GET", path, query=self._query, accept=TABLE)
        definitions = list(table["columnDefinitions"])
        if self._options["watch_only"]:
            pass
        elif self._tables:
            if table.get("rows"):
                click.echo(self._formatted(kind, table, definitions, header=not seen, widths=widths))
        else:
            listed = await self._session.rest.call("GET", path, query=self._query)
            for each in listed.get("items") or ():
                whole = {"apiVersion": kind.api_version, "kind": kind.kind, **each}
                print_objects(self._options["output"], [(kind, whole)], single=True)
        return str(table["metadata"]["resourceVersion"]), definitions

    async def _changes(
        self, kind: ResourceType, path: str, version: str, definitions: list[Any], widths: list[int]
    ) -> str:
        query = {**self._query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        async for line in self._session.rest.lines(
            path, query=query, accept=TABLE if self._tables else "application/json"
        ):
            event = msgspec.json.decode(line)
            found = event["object"]
            if event["type"] == "ERROR":
                raise from_status(found)
            bodies = [row["object"] for row in found.get("rows") or ()] if "rows" in found else [found]
            for body in bodies:
                version = str(((body or {}).get("metadata") or {}).get("resourceVersion") or version)
            if event["type"] == "BOOKMARK":
                continue
            if self._tables:
                click.echo(self._formatted(kind, found, definitions, header=not any(widths), widths=widths))
            else:
                print_objects(self._options["output"], [(kind, found)], single=True)
        return version
