"""`kedge timeline`: the changes of an object and of everything it owns, with their causes, from records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.recording_option import at_option, check_at, open_recording, recording_option
from kedge.cli.resources.durations import DURATION
from kedge.cli.state_folder import command_errors
from kedge.cli.up import no_cluster, state_in_use

if TYPE_CHECKING:
    from kedge.api.kinds import Kind
    from kedge.keys import Key
    from kedge.observe.readers.object_timeline import LaneEntry, ObjectTimeline
    from kedge.observe.readers.recording import Recording


@click.command()
@click.argument("name")
@click.option("--namespace", "-n", default="default", show_default=True)
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@recording_option
@at_option()
@click.option("--generation", type=click.IntRange(min=1), help="Only the time in which NAME had this generation.")
@click.option("--since", type=DURATION, help="Only the last so long, such as 10m: until now, or until the file's end.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "perfetto", "otlp"]), default="text", show_default=True,
    help="perfetto is a trace that ui.perfetto.dev and chrome://tracing open; otlp has OpenTelemetry spans, as JSON.",
)  # fmt: skip
def timeline(
    name: str,
    namespace: str,
    state: Path | None,
    recording: Path | None,
    at: str | None,
    generation: int | None,
    since: float | None,
    output: str,
) -> None:
    """Print the history of NAME (KIND/NAME, a pod or a Deployment) and of everything it owns, in order of revision.

    Each line has the controller or user behind it, and below it the write that caused the decision. The decision log of
    the state folder is enough: the cluster need not run.
    """
    check_at(recording, at)
    kinds_of(name)
    with command_errors():
        if recording is not None:
            found = _from_file(recording, at, name, namespace, generation, since)
        else:
            found = _from_log(state_in_use(state), name, namespace, generation, since)
    if found is None or not (found.decisions or any(_is_recorded(each) for each in found.entries)):
        window = "in this window" if generation is not None or since is not None else "at all"
        raise click.ClickException(
            f"no record about {name} in the namespace {namespace} was kept {window}:"
            " check the name, or use -n or KIND/NAME"
        )
    if output == "text":
        click.echo("\n".join(found.lines()))
    else:
        click.echo(_as_json(found, output))


def _is_recorded(entry: LaneEntry) -> bool:
    """Whether a line is about the object: a version of it, or a request that was refused."""
    from kedge.observe.readers.timeline import REFUSED

    return bool(entry.revision) or entry.kind == REFUSED


def _as_json(found: ObjectTimeline, output: str) -> str:
    import json

    from kedge.observe.readers.otlp import trace_json
    from kedge.observe.readers.timeline_spans import timeline_spans
    from kedge.observe.readers.trace_events import trace_document

    match output:
        case "perfetto":
            document = trace_document(found)
        case "otlp":
            document = trace_json(timeline_spans(found), found.coverage)
        case _:
            document = found.document()
    return json.dumps(document, indent=2)


def _from_file(
    path: Path, at: str | None, name: str, namespace: str, generation: int | None, since: float | None
) -> ObjectTimeline | None:
    found, _ = open_recording(path, at)
    ends = [*(each.at for each in found.commits), *(each.at for each in found.outside)]
    begin = max(ends) - timedelta(seconds=since) if since is not None and ends else None
    return timeline_of(name, namespace, found, generation=generation, since=begin)


def _from_log(
    folder: Path, name: str, namespace: str, generation: int | None, since: float | None
) -> ObjectTimeline | None:
    from kedge.cli.live import decision_folders, logged_history
    from kedge.errors import NotFound

    if not decision_folders(folder):
        raise NotFound(no_cluster(folder))
    begin = datetime.now(UTC) - timedelta(seconds=since) if since is not None else None
    logged = logged_history(folder, keys_of(name, namespace))
    return timeline_of(name, namespace, logged, generation=generation, since=begin)


def timeline_of(
    name: str, namespace: str, recording: Recording, *, generation: int | None = None, since: datetime | None = None
) -> ObjectTimeline | None:
    """The timeline of the first object that NAME may mean and the records know; None if there is none."""
    from dataclasses import replace

    from kedge.observe.readers.object_history import history_of
    from kedge.observe.readers.object_timeline import object_timeline

    for key in keys_of(name, namespace):
        part = recording
        if not recording.states:  # a decision log has no commits, but versions that decisions read and wrote
            part = replace(recording, commits=history_of([key], recording.decisions).commits)
        found = object_timeline(key, part, generation=generation, since=since)
        if found.entries:
            return found
    return None


def kinds_of(name: str) -> tuple[Kind, ...]:
    """The kinds that an argument may mean, in the order in which they are tried.

    Raises:
        UsageError: it names a kind that kedge does not have.
    """
    from kedge.api.kinds import KINDS
    from kedge.api.wellknown import DEPLOYMENT_KIND, JOB_KIND, POD_KIND, REPLICA_SET_KIND
    from kedge.errors import NotFound

    word, slash, _ = name.rpartition("/")
    if not slash:
        return tuple(KINDS.of_key_kind(each) for each in (POD_KIND, DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND))
    try:
        return (KINDS.resolve(word),)
    except NotFound as error:
        raise click.UsageError(f"there is no kind {word!r} here: write it like pod/NAME or deployment/NAME") from error


def keys_of(name: str, namespace: str) -> list[Key]:
    """The objects that an argument may mean, in the order in which they are tried."""
    from kedge.keys import Key

    bare = name.rpartition("/")[2]
    return [Key(kind.key_kind, namespace if kind.namespaced else "", bare) for kind in kinds_of(name)]
