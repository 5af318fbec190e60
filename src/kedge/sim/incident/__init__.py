"""Recorded runs and incidents in the simulator: rebuilt as scenarios, changed, compared, and searched around.

`rebuild` makes a scenario of a recording, `effects` compares two runs, `fault_search` runs the neighbours of one.
"""
