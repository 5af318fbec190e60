"""Judges of a simulated cluster: invariants that hold at every commit, and the state a run must end in.

They read committed state and the machines (`facts`), never a component's cache, and import no controller.
"""
