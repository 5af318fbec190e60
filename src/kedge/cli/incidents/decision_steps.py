"""The decisions of a recording one by one, each with the outcome of running it again: `kedge replay FILE --step`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from kedge.cli.kept_decisions import DecisionReruns, Rerun
from kedge.observe.readers.decision_text import decision_lines, title_of
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision

INDENT = "    "


class DecisionSteps:
    """Some decisions of a recording, in order."""

    def __init__(self, recording: Recording, decisions: Sequence[Decision]) -> None:
        self.decisions = decisions
        self._reruns = DecisionReruns(recording)

    def run_again(self, decision: Decision) -> Rerun:
        return asyncio.run(self._reruns.run(decision))

    def lines(self, number: int) -> Iterator[str]:
        """The decision with this number, from 1, and its outcome when it runs again."""
        decision = self.decisions[number - 1]
        yield f"#{number} of {len(self.decisions)}  {title_of(decision)}"
        for line in decision_lines(decision):
            yield INDENT + line
        yield f"{INDENT}again    {self.run_again(decision).text}"
