"""The work of `kedge delete`: which objects, each deleted by its uid, then waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kedge.cli.resources.arguments import DRY_RUNS
from kedge.cli.resources.session import IncompleteCommand, Session
from kedge.cli.resources.targets import Target, targets
from kedge.errors import NotFound

POLL_S = 0.2


class Deletion:
    """One `kedge delete`. `options` are those of the command."""

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        self._session = session
        self._options = options

    async def run(self, words: Sequence[str], filenames: Sequence[str]) -> None:
        options = self._options
        chosen = await targets(
            self._session,
            words,
            filenames,
            selector=options["selector"],
            everything=options["everything"],
            recursive=options["recursive"],
        )
        if filenames:
            chosen.reverse()
        deleted = [(target, await self._delete(target)) for target in chosen]
        if not chosen:
            click.echo("No resources found.", err=True)
        if self._options["wait"] and self._options["dry_run"] == "none":
            await self._wait([(target, uid) for target, uid in deleted if uid])

    async def _delete(self, target: Target) -> str:
        """Ask for the deletion. Returns the object's uid; empty if there was none."""
        kind, namespace, name = target
        found = await self._session.find(kind, name, namespace)
        if found is None:
            # With --all the object was there a moment ago: it is gone, as wanted.
            if self._options["ignore_not_found"] or self._options["everything"]:
                return ""
            raise NotFound(f'{kind.plural} "{name}" not found: `kedge get {kind.plural}` lists those there are')
        uid = str(found["metadata"]["uid"])
        if self._options["dry_run"] != "client":
            path = self._session.path(kind, name, namespace=namespace)
            await self._session.rest.call("DELETE", path, body=self._delete_options(uid))
        forced = "force deleted" if self._options["force"] else "deleted"
        click.echo(f'{kind.label} "{name}" {forced}{DRY_RUNS[self._options["dry_run"]]}')
        return uid

    def _delete_options(self, uid: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
            "propagationPolicy": self._options["cascade"].capitalize(),
        }
        if self._options["force"]:
            body["gracePeriodSeconds"] = 0
        elif self._options["now"] or self._options["grace_s"] >= 0:
            # 0 removes the object while its process runs: only --force does that, as with kubectl.
            body["gracePeriodSeconds"] = max(1, self._options["grace_s"])
        if self._options["dry_run"] == "server":
            body["dryRun"] = ["All"]
        return body

    async def _wait(self, deleted: Sequence[tuple[Target, str]]) -> None:
        timeout_s = self._options["timeout_s"] or None
        left = list(deleted)
        try:
            async with asyncio.timeout(timeout_s):
                while left:
                    (kind, namespace, name), uid = left[0]
                    found = await self._session.find(kind, name, namespace)
                    if found is None or found["metadata"]["uid"] != uid:
                        left.pop(0)
                    else:
                        await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            kind, _, name = left[0][0]
            raise IncompleteCommand(
                f"{kind.label}/{name} is still there after {timeout_s:.0f} s: see its finalizers with `kedge get"
                f" {kind.plural} {name} -o yaml`, or wait longer with --timeout"
            ) from error
