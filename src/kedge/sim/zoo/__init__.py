"""The bug zoo: real components with one safeguard removed, to test that the hunt finds each resulting bug.

A simulator that injects too little fails the zoo; an unsound control plane fails the clean hunt of the same worlds.
"""

from kedge.sim.zoo.comparison import StrategyComparison, StrategySummary, Trial, compare_entry, contenders
from kedge.sim.zoo.entry import UnknownZooEntry, ZooEntry, all_entries, entry_named
from kedge.sim.zoo.hunt import CleanFinding, CleanResult, EntryResult, ZooReport, hunt_entry, hunt_zoo
from kedge.sim.zoo.table import outcome, summary, table

__all__ = [
    "CleanFinding",
    "CleanResult",
    "EntryResult",
    "StrategyComparison",
    "StrategySummary",
    "Trial",
    "UnknownZooEntry",
    "ZooEntry",
    "ZooReport",
    "all_entries",
    "compare_entry",
    "contenders",
    "entry_named",
    "hunt_entry",
    "hunt_zoo",
    "outcome",
    "summary",
    "table",
]
