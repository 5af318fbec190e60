"""The whole cluster of a file, run again in the simulator: as it was, on another build, or with a changed input.

`kedge replay FILE --rerun` and `--what-if` print these lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kedge.sim.incident.effects import EffectComparison
    from kedge.sim.incident.rerun import IncidentRun

_SHOWN = 20
"""Differences that are printed; the others are counted."""
_HOLDS, _BROKEN, _DEPARTS = 0, 1, 3


def rerun_lines(file: Path, changes: Sequence[str], without: str) -> tuple[list[str], int]:
    """The lines about the run, and the exit code: 1 if a rule is broken, 3 if the run departs from the recording.

    Raises:
        KedgeError: the file cannot be used, or a change is none.
    """
    from kedge.sim.incident.changed_world import with_changes
    from kedge.sim.incident.rerun import load_program, nearest

    program = load_program(file, without=without)
    changed = with_changes(program, changes) if changes else None
    program, run, found = nearest(program)
    variant = f" without {program.without}" if program.without else ""
    recorded = f"{len(program.recording.decisions)} recorded decisions, {program.lasts_s:.0f} s"
    lines = [f"{recorded}: the outside world acted again, the components decided again{variant}"]
    lines += [f"left out: {each}" for each in program.left_out]
    lines += _comparison("as recorded", found)
    if changed is None:
        lines.append(_verdict(run))
        return lines, _BROKEN if run.rule else _DEPARTS if found.departures else _HOLDS
    other = program.run(changed)
    lines += ["", f"with {', '.join(changes)}:", *_comparison("as without the change", program.compare(run, other))]
    if run.rule and run.rule != other.rule:
        lines.append(f"holds now: {run.rule}")
    lines.append(_verdict(other))
    return lines, _BROKEN if other.rule else _HOLDS


def _comparison(beside: str, found: EffectComparison) -> list[str]:
    acts = f"{found.same} acts came out {beside}"
    if not found.departures:
        lines = [acts]
    else:
        lines = [f"{acts}; {len(found.departures)} objects departed, first:"]
        lines += [f"  {each}" for each in found.departures[:_SHOWN]]
        if len(found.departures) > _SHOWN:
            lines.append(f"  and {len(found.departures) - _SHOWN} more")
    lines += [f"  at the end {each}" for each in found.conditions[:_SHOWN]]
    if len(found.conditions) > _SHOWN:
        lines.append(f"  and {len(found.conditions) - _SHOWN} more conditions")
    return lines


def _verdict(run: IncidentRun) -> str:
    return f"broken: {run.rule}: {run.message}" if run.rule else "every invariant and expectation held"
