"""Mutants: safeguards of the control plane weakened at random, to measure how many the tests and the hunt notice.

The zoo's entries are chosen by an author; mutants are drawn by syntax, so that their kill rate cannot be tuned.
"""

from kedge.sim.zoo.mutants.campaign import MutantReport, run_campaign
from kedge.sim.zoo.mutants.draw import Mutant, draw_mutants
from kedge.sim.zoo.mutants.report import mutant_outcome, mutant_table
from kedge.sim.zoo.mutants.sources import LAYERS
from kedge.sim.zoo.mutants.trials import MutantResult, TrialOptions, try_mutant

__all__ = [
    "LAYERS",
    "Mutant",
    "MutantReport",
    "MutantResult",
    "TrialOptions",
    "draw_mutants",
    "mutant_outcome",
    "mutant_table",
    "run_campaign",
    "try_mutant",
]
