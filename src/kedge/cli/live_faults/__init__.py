"""Faults on a cluster that `kedge up` runs: on its links and on its processes. `kedge chaos` places them."""
