"""The table of faults in `docs/simulation.md`, made from the registry.

`python -m kedge.sim.fault_table` prints it; with a page as argument it rewrites the table in that page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from kedge.sim.cluster import fault_points
from kedge.sim.kernel import FAULTS, Fault
from kedge.sim.scenario import fault_steps, machine_steps

DECLARING = (
    fault_points,
    fault_steps,
    machine_steps,
)
"""The modules above the kernel that declare faults: importing them fills the registry."""
BEGIN, END = "<!-- faults: made by `python -m kedge.sim.fault_table` -->", "<!-- end of faults -->"
_TABLE = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)


def fault_table(faults: Iterable[Fault] = FAULTS) -> str:
    """One row a fault, in order of declaration, by point."""
    rows = [
        "| where it strikes | fault | effect | lasts | rates of the swarm | placed by |",
        "|---|---|---|---|---|---|",
    ]
    for fault in faults:
        rates = ", ".join(f"{rate:g}" for rate in fault.rates) or "none"
        plans = ", ".join(fault.plans)
        lasts = "yes" if fault.lasts else "no"
        rows.append(f"| `{fault.point}` | {fault.name} | {fault.effect} | {lasts} | {rates} | {plans} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with its table made from the registry."""
    return _TABLE.sub(lambda _: f"{BEGIN}\n{fault_table()}\n{END}", page)


def main(arguments: list[str]) -> None:
    if not arguments:
        print(fault_table())
    for name in arguments:
        path = Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
