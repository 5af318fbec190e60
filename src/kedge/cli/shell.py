"""`kedge shell FILE`: a prompt at a moment of a recording."""

from __future__ import annotations

from pathlib import Path

import click

from kedge.cli.recording_option import MOMENT
from kedge.cli.resources.session import command_sentences


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--at", type=MOMENT, help="Begin at this revision, or this time, such as 14:03:22.")
def shell(file: Path, at: str | None) -> None:
    """Open a prompt in the recording FILE: move with step, back and goto; ask with get, describe, why, timeline and
    coupling, which answer as of that moment; run decisions again with replay. Verbs are also read from a pipe."""
    from kedge.cli.incidents.recording_shell import RecordingShell
    from kedge.observe.readers.moments import chosen_decisions
    from kedge.observe.readers.recording import read_recording

    with command_sentences():
        recording = read_recording(file)
        opened = RecordingShell(file, recording, chosen_decisions(recording, None, None))
        if at is not None:
            opened.do_goto(at)
        opened.run()
