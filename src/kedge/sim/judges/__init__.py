"""Judges of a simulated cluster: invariants that hold at every commit, and the state a run must end in.

They read committed state and the machines (`facts`), never the cache of a component, and import no controller.
"""
