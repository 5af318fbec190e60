"""The writer that a test kills: it logs decisions, and prints a line for each flushed batch."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.kit.records import full_decision, make_env, pod

from kedge.observe import DecisionLog


def main(directory: str, seed: str) -> None:
    """Write until killed. Segments are small, so that kills also come while one ends and another begins."""
    env = make_env(decision_log_segment_bytes_max=20_000, decision_log_bytes_max=100_000_000)
    log, rng, n = DecisionLog(Path(directory), env), random.Random(seed), 0
    while True:
        for _ in range(rng.randrange(1, 6)):
            n += 1
            objects = [pod(f"web-{each}", n - each % 3, text="x" * rng.randrange(400)) for each in range(5)]
            log.append(full_decision(f"{seed}-{n}", *objects))
        log.flush()
        if rng.random() < 0.1:
            log.sync()
        sys.stdout.write(f"{n}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
