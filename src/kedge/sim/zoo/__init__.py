"""The bug zoo: real components with one safeguard less, kept to prove that the hunt finds what it is for.

A simulator that is too polite fails the zoo; a control plane that is not sound fails the clean hunt beside it.
"""

from kedge.sim.zoo.comparing import Comparison, Standing, Trial, compare_entry, contenders
from kedge.sim.zoo.entries import Entry, UnknownEntry, all_entries, entry_named
from kedge.sim.zoo.hunting import Census, Clean, Finding, Row, census, hunt_entry
from kedge.sim.zoo.table import outcome, summary, table

__all__ = [
    "Census",
    "Clean",
    "Comparison",
    "Entry",
    "Finding",
    "Row",
    "Standing",
    "Trial",
    "UnknownEntry",
    "all_entries",
    "census",
    "compare_entry",
    "contenders",
    "entry_named",
    "hunt_entry",
    "outcome",
    "summary",
    "table",
]
