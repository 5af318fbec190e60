"""The options of commands that answer from a kept file: `--recording FILE`, and `--at` for a moment of it.

`kedge shell` runs the same commands on the recording that it has read: it passes it in the context of click.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kedge.observe.readers.moments import Moment
    from kedge.observe.readers.recording import Recording

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class OpenRecording:
    """A recording that was read already, and the file that it is of."""

    path: Path
    recording: Recording
    moment: Moment
    """The moment of commands that name none."""


class MomentType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A moment of a recording, as text: it is found once the file is read."""

    name = "revision|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from kedge.errors import BadRequest
        from kedge.observe.readers.moments import parse_moment

        try:
            parse_moment(str(value))
        except BadRequest as error:
            self.fail(str(error), param, ctx)
        return str(value)


MOMENT = MomentType()

recording_option = click.option(
    "--recording",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Answer from a kept file, as of its end, instead of a running cluster.",
)


def at_option(*names: str) -> Callable[[_Command], _Command]:
    """`--at`, and other names of it."""
    return click.option(
        "--at",
        *names,
        "at",
        type=MOMENT,
        help="With --recording: answer as of this revision, or this time, such as 14:03:22.",
    )


def check_at(recording: Path | None, at: str | None) -> None:
    """
    Raises:
        UsageError: a moment is named, and no recording.
    """
    if at is not None and recording is None:
        raise click.UsageError("--at goes with --recording: a running cluster is shown as it is now")


def open_recording(path: Path, at: str | None = None) -> tuple[Recording, Moment | None]:
    """The recording up to a moment, and the moment; whole, and None without one.

    Raises:
        BadKeptFile: it is no recording.
        NotFound: it does not reach back to the moment.
    """
    from kedge.observe.readers.moments import recording_at

    found, moment = recording_with_moment(path, at)
    return (found, None) if moment is None else (recording_at(found, moment), moment)


def recording_with_moment(path: Path, at: str | None) -> tuple[Recording, Moment | None]:
    """The whole recording, and the moment that is meant; None for its end. Raises what `open_recording` does."""
    from kedge.observe.readers.moments import find_moment
    from kedge.observe.readers.recording import read_recording

    context = click.get_current_context(silent=True)
    known = context.find_object(OpenRecording) if context is not None else None
    if known is not None and known.path == path:
        return known.recording, known.moment if at is None else find_moment(known.recording, at)
    found = read_recording(path)
    return found, None if at is None else find_moment(found, at)
