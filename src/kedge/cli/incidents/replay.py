"""Replays the file of an incident: every decision runs again on what its component had received, and must come out as
recorded; every version and write is compared with the history of the store."""

from __future__ import annotations

from typing import NamedTuple

from kedge.cli.incidents.incident_file import summary_of
from kedge.cli.kept_decisions import RecheckReport, recheck_decisions
from kedge.observe.readers.history_check import HistoryCheck, check_history
from kedge.observe.readers.moments import chosen_decisions
from kedge.observe.readers.recording import Recording

_SHOWN = 10
"""Differences that are printed; the others are counted."""


class IncidentReplay(NamedTuple):
    """The outcome of a replay."""

    decisions: RecheckReport
    history: HistoryCheck
    changes: tuple[str, ...] = ()
    """How the file differs from the one that was written."""

    @property
    def same(self) -> bool:
        return not self.decisions.differences and not self.history.differences and not self.changes

    def lines(self) -> list[str]:
        """The verdict, then the counts."""
        history = self.history
        differences = [*history.differences, *self.decisions.differences, *self.changes]
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
        if history.unknown:
            lines.append(f"{history.unknown} versions and writes are in gaps of the history, and were not compared")
        if history.replaced:
            lines.append(
                f"{history.replaced} versions of leases are not in the history: the store keeps the newest alone"
            )
        if history.unrecorded:
            lines.append(f"{history.unrecorded} versions name a decision that the file lacks")
        return lines


async def replay_incident(
    recording: Recording, *, first: str | None = None, until: str | None = None
) -> IncidentReplay:
    """Replay all of it, or the decisions between two points, as `chosen_decisions` finds them."""
    summary = summary_of(recording)
    gaps = summary.history_gaps if summary is not None else ()
    return IncidentReplay(
        await recheck_decisions(chosen_decisions(recording, first, until), recording), check_history(recording, gaps)
    )
