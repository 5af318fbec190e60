"""Check that a program is deterministic: run the same seeds in two fresh processes, with different hash seeds.

`check_determinism` reports the first event at which two runs differ. The processes run this module; they print one line
of JSON per seed, or the whole trace of one seed to explain a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kedge.errors import KedgeError, ReplayDiverged
from kedge.sim.kernel.artefacts import pack_trace, unpack_trace
from kedge.sim.kernel.targets import find_target
from kedge.sim.kernel.trace_diff import TraceDifference, first_difference

HASH_SEEDS = ("1", "4242")


class NotDeterministic(ReplayDiverged):
    """Two runs of one seed differ. Find the input that is not from the program's `Env`: sets, `id()`, the clock."""

    def __init__(self, target: str, seed: int, difference: TraceDifference | None) -> None:
        self.seed = seed
        self.difference = difference
        where = str(difference) if difference is not None else "but two further runs of it agree: it differs by chance"
        super().__init__(
            f"{target}: seed {seed} differs between two processes {where}. Look there for an order that comes from a"
            " set, a hash or an address, or for time and randomness that are not the host's"
        )


@dataclass(frozen=True, slots=True)
class DeterminismReport:
    """The seeds that were compared and found equal."""

    target: str
    seeds: int
    violations: int


def check_determinism(target: str, *, seeds: int = 1_000, start: int = 0) -> DeterminismReport:
    """Run `seeds` seeds of `target` in each of two fresh processes and compare every trace hash.

    Raises:
        NotDeterministic: with the first seed that differs, and the first event at which it does.
    """
    one, other = _run_twice(target, ["--start", str(start), "--seeds", str(seeds)])
    violations = 0
    for left, right in zip(one, other, strict=True):
        if left != right:
            raise NotDeterministic(target, left["seed"], _explain(target, left["seed"]))
        violations += left["violation"] is not None
    return DeterminismReport(target, seeds, violations)


def _explain(target: str, seed: int) -> TraceDifference | None:
    (one,), (other,) = _run_twice(target, ["--start", str(seed), "--seeds", "1", "--trace"])
    return first_difference(
        unpack_trace(b64decode(one["trace"])),
        unpack_trace(b64decode(other["trace"])),
        one_strands=_strands(one),
        other_strands=_strands(other),
    )


def _strands(line: dict[str, Any]) -> dict[int, str]:
    return {int(number): name for number, name in line["strands"].items()}


def _run_twice(target: str, arguments: list[str]) -> list[list[dict[str, Any]]]:
    """The same run in two fresh processes, concurrently."""
    with ThreadPoolExecutor(len(HASH_SEEDS)) as pool:
        return list(pool.map(lambda hash_seed: _run_fresh(target, arguments, hash_seed), HASH_SEEDS))


def _run_fresh(target: str, arguments: list[str], hash_seed: str) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "kedge.sim.kernel", "--target", target, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise KedgeError(f"cannot run {target} in a fresh process: {last}")
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """The fresh process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    target = find_target(options.target).calibrated()
    for seed in range(options.start, options.start + options.seeds):
        outcome = target.run(seed, name_strands=options.trace)
        line: dict[str, Any] = {
            "seed": seed,
            "hash": outcome.hash,
            "violation": None if outcome.violation is None else str(outcome.violation),
        }
        if options.trace:
            line |= {"trace": b64encode(pack_trace(outcome.trace)).decode(), "strands": outcome.strands}
        print(json.dumps(line), flush=True)
