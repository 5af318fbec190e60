"""A failure as text: the invariant, the events around each fault, the conditions it needs, and how to replay it.

Used by `kedge hunt`, `kedge replay` and the pytest plugin, so that all three print the same report.
"""

from __future__ import annotations

from pathlib import Path

from kedge.sim.kernel.artefacts import Artefact
from kedge.sim.kernel.trace import Event

EVENTS_MAX = 60
"""Events printed of a long run: those around each fault, and the last ones."""
_AROUND = 3


def describe_failure(artefact: Artefact, *, path: Path | None = None) -> str:
    broken = artefact.violation
    lines = [
        f"broken     {broken.invariant if broken is not None else 'nothing: every invariant held'}",
        *([f"seen       {broken.message.splitlines()[0]}"] if broken is not None else []),
        *([f"program    {artefact.target}"] if artefact.target else []),
        f"run        seed {artefact.seed}, {_size(artefact)}, trace {artefact.hash}",
        "",
        "events",
        *[f"  {line}" for line in shown_events(artefact.trace.events)],
    ]
    if broken is not None and broken.detail:
        lines += ["", "detail", *[f"  {line}" for line in broken.detail.rstrip().splitlines()[-30:]]]
    if artefact.conditions:
        lines += ["", "does the failure need it?"]
        labels = {True: "yes", False: "no", None: "not tried"}
        lines += [f"  {labels[each.needed]:<4} {each.what}" for each in artefact.conditions]
    lines += [f"gap        {gap}" for gap in artefact.gaps]
    if path is not None:
        lines += ["", f"replay with: kedge replay {path}"]
    return "\n".join(lines)


def _size(artefact: Artefact) -> str:
    faults, deviations = len(artefact.tape.strikes()), artefact.tape.deviations()
    return f"{faults} faults, {deviations} schedule deviations, {len(artefact.trace.steps)} steps"


def shown_events(events: list[Event]) -> list[str]:
    """The events of the report, in order, with a mark where some are left out."""
    kept = _events_to_show(events)
    lines: list[str] = []
    before = -1
    for index in kept:
        if index != before + 1:
            lines.append(f"... {index - before - 1} events ...")
        lines.append(str(events[index]))
        before = index
    return lines


def _events_to_show(events: list[Event]) -> list[int]:
    if len(events) <= EVENTS_MAX:
        return list(range(len(events)))
    last = set(range(len(events) - EVENTS_MAX // 2, len(events)))
    for index, event in enumerate(events):
        if event.kind in ("fault", "crash", "restart", "violation"):
            last.update(range(max(0, index - _AROUND), min(len(events), index + _AROUND + 1)))
    return sorted(last)[-EVENTS_MAX:]
