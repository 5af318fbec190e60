"""The bug zoo: real components with one safeguard less, kept to prove that the hunt finds what it is for.

A simulator that is too polite fails the zoo; a control plane that is not sound fails the clean hunt beside it.
"""

from kedge.sim.zoo.entries import Entry
from kedge.sim.zoo.hunting import (
    Census,
    Clean,
    Finding,
    Row,
    UnknownEntry,
    all_entries,
    census,
    entry_named,
    hunt_entry,
)
from kedge.sim.zoo.table import outcome, summary, table

__all__ = [
    "Census",
    "Clean",
    "Entry",
    "Finding",
    "Row",
    "UnknownEntry",
    "all_entries",
    "census",
    "entry_named",
    "hunt_entry",
    "outcome",
    "summary",
    "table",
]
