"""Whether a pod fits a node, and which resources it claims there. Pure: no I/O, clock or randomness."""
