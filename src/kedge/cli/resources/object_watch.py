"""The watch of `kedge get --watch`: the list, then each change, as tables, objects or events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.output import TABLE, format_table, print_event, print_objects
from kedge.cli.resources.session import Session
from kedge.cli.resources.targets import Target
from kedge.errors import Compacted, Unavailable, from_status

_RECONNECT_S: Final = 1.0
_EVENT_WIDTH: Final = len("MODIFIED")


class TypeWatch:
    """One watch of a type or of one object. `options` are those of `kedge get`."""

    def __init__(self, session: Session, query: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self._session = session
        self._query = dict(query)
        self._options = options
        self._tables = options["output"] in ("table", "wide")
        self._events = bool(options["output_watch_events"])
        self._widths = [_EVENT_WIDTH] if self._events else []
        self._definitions: Sequence[Mapping[str, Any]] = ()
        self._printed = False

    async def run(self, target: Target) -> None:
        """Print the list, then each change. A stream that ends is opened again where it was."""
        if target.name:
            self._query["fieldSelector"] = f"metadata.name={target.name}"
        path = self._session.path(target.kind, namespace=target.namespace)
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list(target.kind, path)
                version = await self._changes(target.kind, path, version)
            except Compacted:
                version = ""  # too long ago: list again
            except Unavailable:
                await asyncio.sleep(_RECONNECT_S)

    async def _list(self, kind: ResourceType, path: str) -> str:
        """Print the objects of now, as events `ADDED`. Returns the version to watch from."""
        accept = TABLE if self._tables else "application/json"
        found = await self._session.rest.call("GET", path, query=self._query, accept=accept)
        self._definitions = found.get("columnDefinitions") or ()
        if not self._options["watch_only"]:
            if self._tables and found.get("rows"):
                self._print(kind, "ADDED", found)
            for each in found.get("items") or ():
                self._print(kind, "ADDED", {"apiVersion": kind.api_version, "kind": kind.kind, **each})
        return str(found["metadata"]["resourceVersion"])

    async def _changes(self, kind: ResourceType, path: str, version: str) -> str:
        query = {**self._query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        accept = TABLE if self._tables else "application/json"
        async for line in self._session.rest.lines(path, query=query, accept=accept):
            event = msgspec.json.decode(line)
            found = event["object"]
            if event["type"] == "ERROR":
                raise from_status(found)
            bodies = [row["object"] for row in found.get("rows") or ()] if "rows" in found else [found]
            for body in bodies:
                version = str(((body or {}).get("metadata") or {}).get("resourceVersion") or version)
            if event["type"] != "BOOKMARK":
                self._print(kind, event["type"], found)
        return version

    def _print(self, kind: ResourceType, event: str, found: Mapping[str, Any]) -> None:
        """Print a Table or an object, with the type of its event if that is wanted."""
        output, first = self._options["output"], not self._printed
        self._printed = True
        if self._tables:
            shown = event if self._events else ""
            text = format_table(
                kind, found, self._definitions, self._options, header=first, widths=self._widths, event=shown
            )
            click.echo(text)
            return
        if output == "yaml" and not first:
            click.echo("---")
        if self._events and output != "name":
            print_event(output, event, found)
        else:
            print_objects(output, [(kind, found)], single=True)
