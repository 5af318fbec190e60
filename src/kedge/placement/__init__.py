"""Whether a pod fits a node, and what it takes there. Pure: no I/O, clock or randomness."""
