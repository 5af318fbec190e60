"""Counts of torture tests. `python -m tests.torture` sums them and prints one line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "KEDGE_TORTURE_COUNTS"
"""The environment variable with the path of the file that collects counts; without it they are only printed."""
NAMES = (
    "kills", "etcd_kills", "pauses", "disk_faults", "operations", "acknowledged", "unknown", "lost", "violations",
)  # fmt: skip


def report(test: str, **counts: Any) -> None:
    """Add the counts of a test. `disk_faults` is a mapping of counts by kind."""
    unknown = set(counts) - set(NAMES)
    assert not unknown, f"counts of torture tests are named {', '.join(NAMES)}, not {unknown}"
    line = json.dumps({"test": test, **counts})
    print(line)
    path = os.environ.get(FILE)
    if path:
        with Path(path).open("a") as file:
            file.write(line + "\n")


def total(path: Path) -> dict[str, Any]:
    """The sums of all reports in a file."""
    sums: dict[str, Any] = {name: {} if name == "disk_faults" else 0 for name in NAMES}
    for line in path.read_text().splitlines() if path.exists() else ():
        for name, value in json.loads(line).items():
            if name == "disk_faults":
                _add(sums[name], value)
            elif name in sums:
                sums[name] += value
    return sums


def _add(sums: dict[str, int], counts: Mapping[str, int]) -> None:
    for kind, count in counts.items():
        sums[kind] = sums.get(kind, 0) + count


def scaled(name: str, few: int) -> int:
    """The size of a test: `few` in CI; under `make torture` the environment variable sets it."""
    return int(os.environ.get(f"KEDGE_TORTURE_{name}", few))
