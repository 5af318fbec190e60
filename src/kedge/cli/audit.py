"""`kedge audit`: the audit log of a state folder: users, verbs, objects, revisions and decisions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.resources.durations import DURATION
from kedge.cli.state_folder import AUDIT, command_errors
from kedge.cli.up import state_in_use

if TYPE_CHECKING:
    from kedge.server.audit import AuditEvent, AuditGap, AuditQuery

HEADER = ("TIME", "USER", "VERB", "OBJECT", "CODE", "REVISIONS", "DECISION", "TOOK")


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that the server was given.")
@click.option("--decision", default="", metavar="ID", help="Only requests of this decision.")
@click.option("--user", default="", metavar="USER", help="Only requests of this user, or on its behalf.")
@click.option(
    "--object",
    "target",
    default="",
    metavar="KIND/NAMESPACE/NAME",
    help="Only requests about this object; KIND/NAME without a namespace, KIND for all of a kind.",
)
@click.option("--since", type=DURATION, help="Only the last so long, such as 10m.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def audit(state: Path | None, decision: str, user: str, target: str, since: float | None, output: str) -> None:
    """Print the audit log of a cluster, oldest entry first. The cluster need not run.

    With -o json each line is an audit event as Kubernetes has it; annotations of kedge.dev have the decision, the
    operation, the revisions before and after, the outcome and the latency.
    """
    from kedge.server.audit import AuditEvent, AuditGap, AuditReader, encode_event, encode_gap

    query = query_of(decision, user, target, since)
    reader = AuditReader(state_in_use(state) / AUDIT)
    rows: list[tuple[str, ...]] = []
    with command_errors():
        for each in reader.read(query):
            if output == "json":
                line = encode_event(each) if isinstance(each, AuditEvent) else encode_gap(each.dropped, each.at)
                click.echo(line.decode(), nl=False)
            else:
                rows.append(_gap_row(each) if isinstance(each, AuditGap) else row_of(each))
    if output == "text":
        from kedge.cli.resources.output import format_rows

        click.echo(format_rows(HEADER, rows) if rows else "no entry matches")
    if reader.unreadable:
        click.echo(f"{reader.unreadable} lines could not be read: a kill cut them off", err=True)


def query_of(decision: str, user: str, target: str, since: float | None) -> AuditQuery:
    """
    Raises:
        UsageError: the object has another form, or a kind that kedge does not have.
    """
    from kedge.api.kinds import KINDS
    from kedge.errors import NotFound
    from kedge.server.audit import AuditQuery

    begin = datetime.now(UTC) - timedelta(seconds=since) if since is not None else None
    if not target:
        return AuditQuery(decision=decision, user=user, since=begin)
    word, *rest = target.split("/")
    try:
        kind = KINDS.resolve(word)
    except NotFound as error:
        raise click.UsageError(f"there is no kind {word!r} here: write it like pod/NAMESPACE/NAME") from error
    if len(rest) > 2 or not all(rest):
        raise click.UsageError(f"{target!r} is no object: write KIND/NAMESPACE/NAME, KIND/NAME or KIND")
    namespace, name = (rest[0], rest[1]) if len(rest) == 2 else ("", rest[0] if rest else "")
    return AuditQuery(
        decision=decision,
        user=user,
        group=kind.group,
        resource=kind.plural,
        namespace=namespace,
        name=name,
        since=begin,
    )


def row_of(event: AuditEvent) -> tuple[str, ...]:
    from kedge.api.wellknown import (
        AUDIT_LATENCY,
        AUDIT_OBJECTS,
        AUDIT_OBJECTS_LEFT_OUT,
        AUDIT_REVISION,
        AUDIT_REVISION_BEFORE,
        DECISION_ANNOTATION,
    )
    from kedge.server.audit import STARTED

    user, ref, notes = event.user.username, event.object_ref, event.annotations
    if event.impersonated_user is not None:
        user = f"{event.impersonated_user.username} (by {user})"
    about = event.request_uri
    if ref is not None:
        resource = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
        about = "/".join(each for each in (resource, ref.namespace, ref.name) if each)
    deleted = notes.get(AUDIT_OBJECTS)
    if deleted is not None:
        about += f" ({len(json.loads(deleted)) + int(notes.get(AUDIT_OBJECTS_LEFT_OUT, '0'))} objects)"
    before, after = notes.get(AUDIT_REVISION_BEFORE, ""), notes.get(AUDIT_REVISION, "")
    code = "" if event.response_status is None else str(event.response_status.code)
    return (
        event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        user,
        f"{event.verb} (begins)" if event.stage == STARTED else event.verb,
        about,
        code,
        f"{before} -> {after}" if before and after and before != after else after or before,
        notes.get(DECISION_ANNOTATION, ""),
        f"{float(notes.get(AUDIT_LATENCY, '0')) * 1000:.1f}ms",
    )


def _gap_row(gap: AuditGap) -> tuple[str, ...]:
    return (gap.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], "", "", f"{gap.dropped} entries were dropped", "", "", "", "")
