"""The prompt of `kedge shell FILE`: a moment of a recording, verbs that move it, and the reading verbs of kedge there.

A verb that fails prints one sentence, and the prompt stays. Input from a pipe is read line by line, without a prompt.
"""

from __future__ import annotations

import cmd
import shlex
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from kedge.cli.incidents.decision_steps import DecisionSteps
from kedge.cli.recording_option import OpenRecording
from kedge.errors import KedgeError
from kedge.observe.readers.moments import Moment, find_moment, first_moment, last_moment
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision

READING_VERBS: Final = ("get", "describe", "why", "timeline", "coupling")
"""Commands of kedge that answer as of the moment."""
HELP: Final = {
    "step [N]": "the next decision, or the Nth after this; an empty line does the same",
    "back [N]": "the decision before",
    "goto REVISION|TIME|#N": "another moment: a revision, a time such as 14:03:22, or a decision by its number",
    "where": "the moment, and the decision there",
    "get TYPE [NAME]": "objects at this moment",
    "describe TYPE NAME": "one object in full",
    "why NAME": "explain the state of an object",
    "timeline NAME": "its changes up to this moment",
    "coupling CONTROLLER": "what can change its inputs",
    "replay [FROM [UNTIL]]": "run this decision again, or those between two moments",
    "help": "these verbs; the options of kedge's own commands work here too",
    "quit": "leave",
}


class RecordingShell(cmd.Cmd):
    """One prompt. `run` it once."""

    def __init__(self, path: Path, recording: Recording, decisions: Sequence[Decision]) -> None:
        """`decisions` are those that it steps through, in the order of their begin.

        Raises:
            NotFound: the recording has no history.
        """
        super().__init__()
        self._path, self._recording = path, recording
        self._steps = DecisionSteps(recording, decisions)
        self._begins = [each.began for each in decisions]
        self._number = 0
        """The decision that was stepped to last, from 1; 0 before the first."""
        self._moment = first_moment(recording)

    def run(self) -> None:
        """Read verbs until the end of the input."""
        if sys.stdin.isatty():
            click.echo(f"{len(self._begins)} decisions, from {self._moment} to {last_moment(self._recording)}")
            click.echo("help lists the verbs; an empty line is the next decision")
            self.cmdloop()
            return
        for line in sys.stdin:
            if self.onecmd(line.rstrip("\n")):
                break

    @property
    def prompt(self) -> str:  # type: ignore[override]  # a plain attribute in cmd
        return f"{self._moment}> "

    def cmdloop(self, intro: str | None = None) -> None:
        while True:
            try:
                super().cmdloop(intro)
            except KeyboardInterrupt:
                click.echo()  # the line is given up, not the shell
            else:
                return

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except click.ClickException as error:
            error.show()
        except (click.exceptions.Exit, click.Abort, SystemExit):
            pass
        except KedgeError as error:
            click.echo(f"Error: {error}", err=True)
        except Exception as error:  # noqa: BLE001  # a bug in one verb must not end the prompt
            click.echo(f"Error: {type(error).__name__}: {error}", err=True)
        return False

    def emptyline(self) -> bool:
        self.do_step("")
        return False

    def default(self, line: str) -> None:
        verb, *rest = _words(line)
        if verb in READING_VERBS:
            self._read(verb, rest)
            return
        raise click.ClickException(f"there is no verb {verb}: use one of {', '.join(self.completenames(''))}")

    def completenames(self, text: str, *ignored: object) -> list[str]:
        del ignored
        return [name for name in (each.split(" ")[0] for each in HELP) if name.startswith(text)]

    # -- moving ------------------------------------------------------------------------------------

    def do_step(self, line: str) -> None:
        self._go_to(self._number + _count(line))

    def do_back(self, line: str) -> None:
        self._go_to(self._number - _count(line))

    def do_goto(self, line: str) -> None:
        place = line.strip()
        if place.startswith("#") and place[1:].isdigit():
            self._go_to(int(place[1:]))
            return
        self._moment = find_moment(self._recording, place)
        self._number = bisect_right(self._begins, self._moment.at)
        self.do_where("")

    def do_where(self, line: str) -> None:
        del line
        if self._number:
            click.echo(f"{self._moment}, after the begin of:")
            self._show()
        else:
            click.echo(f"{self._moment}, before the first decision")

    def _go_to(self, number: int) -> None:
        if not 1 <= number <= len(self._begins):
            there = f"there are {len(self._begins)} decisions"
            raise click.ClickException(f"{there}, and this is {f'#{self._number}' if self._number else 'before them'}")
        self._number = number
        began = self._begins[number - 1]
        begin = first_moment(self._recording)
        reached = [each.revision for each in self._recording.commits if each.at <= began]
        self._moment = Moment(max(reached, default=begin.revision), max(began, begin.at))
        self._show()

    def _show(self) -> None:
        for text in self._steps.lines(self._number):
            click.echo(text)

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, verb: str, rest: Sequence[str]) -> None:
        from kedge.cli import main

        known = OpenRecording(self._path, self._recording, self._moment)
        words = [verb, *rest, "--recording", str(self._path)]
        main.main(words, prog_name="kedge", standalone_mode=False, obj=known)

    def do_replay(self, line: str) -> None:
        from kedge.cli.kept_decisions import recheck_decisions
        from kedge.observe.readers.moments import chosen_decisions

        bounds = _words(line)
        if not bounds:
            if not self._number:
                raise click.ClickException("no decision is here: `step` goes to the first")
            click.echo(self._steps.run_again(self._steps.decisions[self._number - 1]).text)
            return
        import asyncio

        chosen = chosen_decisions(self._recording, bounds[0], bounds[1] if len(bounds) > 1 else None)
        for each in asyncio.run(recheck_decisions(chosen, self._recording)).lines():
            click.echo(each.text)

    def do_help(self, arg: str) -> None:
        del arg
        width = max(map(len, HELP))
        for verb, text in HELP.items():
            click.echo(f"{verb:{width}}  {text}")

    def do_quit(self, line: str) -> bool:
        del line
        return True

    def do_EOF(self, line: str) -> bool:  # noqa: N802  # the name that cmd gives to the end of the input
        click.echo()
        return self.do_quit(line)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise click.ClickException(f"{line!r} cannot be read ({error}): close its quotes") from error


def _count(line: str) -> int:
    text = line.strip() or "1"
    if not text.isdigit() or not int(text):
        raise click.ClickException(f"{text!r} is no number of decisions: write it like 3")
    return int(text)
