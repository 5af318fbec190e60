"""The fresh process of `check_determinism`: `python -m kedge.sim.kernel --target ... --seeds ...`."""

from __future__ import annotations

from kedge.sim.kernel.determinism import main

main()
