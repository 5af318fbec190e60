"""Replays the file of an incident: every decision runs again on what its component had received, and must come out as
recorded; every version and write is compared with the history of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kedge.cli.kept_decisions import RecheckReport, recheck_decisions
from kedge.keys import Revision
from kedge.observe.readers.history_check import HistoryCheck, check_history
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision

_SHOWN = 10
"""Differences that are printed; the others are counted."""


class IncidentReplay(NamedTuple):
    """The outcome of a replay."""

    decisions: RecheckReport
    history: HistoryCheck

    @property
    def same(self) -> bool:
        return not self.decisions.differences and not self.history.differences

    def lines(self) -> list[str]:
        """The verdict, then the counts."""
        history = self.history
        differences = [*history.differences, *self.decisions.differences]
        lines = ["same" if self.same else f"DIFFERS: {differences[0]}"]
        lines += [f"DIFFERS: {each}" for each in differences[1:_SHOWN]]
        if len(differences) > _SHOWN:
            lines.append(f"DIFFERS: {len(differences) - _SHOWN} more")
        lines.append(f"{self.decisions.agreed} decisions were run again, and agree")
        lines += [f"not run again: {count} {why}" for why, count in sorted(self.decisions.skipped.items())]
        lines.append(
            f"{history.versions} versions in the records of components and {history.writes} writes agree with the"
            f" history; of its versions {history.by_decisions} were written by these decisions, {history.by_others} by"
            f" people, other clients and the server"
        )
        if history.unrecorded:
            lines.append(f"{history.unrecorded} versions name a decision that the file lacks")
        return lines


async def replay_incident(
    recording: Recording, *, first: Revision | None = None, until: Revision | None = None
) -> IncidentReplay:
    """Replay all of it, or the decisions that were made on revisions from `first` to `until`."""
    return IncidentReplay(
        await recheck_decisions(chosen_decisions(recording.decisions, first, until), recording),
        check_history(recording),
    )


def chosen_decisions(decisions: Sequence[Decision], first: Revision | None, until: Revision | None) -> list[Decision]:
    """Decisions by the newest revision that their caches had reached; those without a mark belong to any."""
    return [
        each
        for each in decisions
        if not each.marks
        or (
            (first is None or max(mark.revision for mark in each.marks) >= first)
            and (until is None or max(mark.revision for mark in each.marks) <= until)
        )
    ]
