"""`kedge caches`: the caches of a running cluster: revision, lag, age and relists by kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from kedge.cli.resources.session import ServerChoice, Session, cluster_options, run_session

HEADER = ("CACHE", "OBJECTS", "REVISION", "LAG", "AGE", "RELISTS", "WATCH", "FAILURES")


@click.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def caches(choice: ServerChoice, output: str) -> None:
    """Print the caches of a cluster of `kedge up`.

    LAG counts revisions of the store that a cache has not reached; AGE is the time since it was known to be current.
    """
    from kedge.cli.debug_pages import CACHES_PATH
    from kedge.cli.queue import as_json, debug_document

    async def work(session: Session) -> None:
        document = await debug_document(session, CACHES_PATH)
        click.echo(as_json(document) if output == "json" else "\n".join(cache_lines(document)))

    run_session(choice, work)


def cache_lines(document: dict[str, Any]) -> Iterator[str]:
    from kedge.cli.resources.output import format_rows

    yield format_rows(HEADER, [_row(each) for each in sorted(document["caches"], key=lambda each: str(each["cache"]))])
    yield f"\nat {document['at']}, when the store was at revision {document['storeRevision']}; every cache is listed"


def _row(cache: dict[str, Any]) -> tuple[str, ...]:
    age = cache["ageSeconds"]
    watch = cache["watch"] + (f" ({cache['lastError']})" if cache["lastError"] and not cache["healthy"] else "")
    return (
        cache["cache"],
        str(cache["objects"]),
        str(cache["revision"]),
        str(cache["lagRevisions"]),
        "never listed" if age is None else f"{age:.1f}s",
        str(cache["relists"]),
        watch,
        str(cache["failures"]),
    )
