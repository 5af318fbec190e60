"""Run worlds of the zoo in a process of its own, over the package of an overlay: `python -m ... reach` or `hunt`.

`reach` prints the lines that each world executes, `hunt` and `hunt by coverage` the first violation within their CPU
time, `replay` whether a tape of another build fails here too. `trials` starts it;
arguments come as JSON on standard input, and the result is the last line of standard output.
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kedge
from kedge.sim.kernel.artefacts import pack_tape, unpack_tape
from kedge.sim.kernel.coverage_search import search_coverage
from kedge.sim.kernel.targets import find_target
from kedge.sim.zoo.coverage import world_arms
from kedge.sim.zoo.find import world_target
from kedge.sim.zoo.mutants.line_marks import MARKS
from kedge.sim.zoo.worlds import WORLDS, ZooWorld


def reach(worlds: Sequence[str], seeds: int) -> dict[str, dict[str, list[int]]]:
    """The lines of marked modules that seeds of each world execute, by world and module."""
    found: dict[str, dict[str, list[int]]] = {}
    for name in worlds:
        for before in _marked_modules().values():
            before.clear()
        for seed in range(seeds):
            _run_seed(WORLDS[name], seed)
        found[name] = {path: sorted(lines) for path, lines in _marked_modules().items() if lines}
    return found


def _marked_modules() -> dict[str, set[int]]:
    root = Path(kedge.__file__).parent
    return {
        str(Path(module.__file__ or "").relative_to(root)): getattr(module, MARKS)
        for module in list(sys.modules.values())
        if MARKS in getattr(module, "__dict__", {})
    }


def hunt_by_coverage(worlds: Sequence[str], cpu_s: float) -> dict[str, Any]:
    """Search by coverage until a run fails or the CPU time is over. The result has the tape of the failing run."""
    search = search_coverage(
        world_arms(worlds),
        runs_max=sys.maxsize,
        cpu_s_max=cpu_s,
        executor="inline",
        lookahead=1,
        until=lambda so_far: bool(so_far.finds or so_far.broken),
    )
    found: dict[str, Any] = {}
    for find in search.finds.values():
        violation, (_, tape) = find.group.violation, find.group.tapes[0]
        arm = search.arms[find.strategy]
        found = {"world": arm.world, "strategy": arm.strategy, "seed": tape.seed, "invariant": violation.invariant}
        found |= {"message": violation.message[:400], "tape": b64encode(pack_tape(tape)).decode()}
    for each in search.broken:  # a mutant may fail in any way, and each way shows the mutant
        arm = search.arms[each.arm]
        found = {"world": arm.world, "strategy": arm.strategy, "invariant": each.why[:400]}
    return {**found, "seeds": search.done, "cpu_s": round(search.cpu_s, 2)}


def fails(world: str, strategy: str, tape: str) -> dict[str, Any]:
    """Whether a tape of another build fails here too."""
    outcome = world_target(world, strategy).run(unpack_tape(b64decode(tape)), lenient=True)
    return {"world": world} if outcome.violation is not None else {}


def hunt_worlds(worlds: Sequence[str], cpu_s: float, first_seed: int = 0) -> dict[str, Any]:
    """Run seeds until one fails or the CPU time is over. The next seed is of the world that has used least."""
    used_s = dict.fromkeys(worlds, 0.0)
    seeds = dict.fromkeys(worlds, 0)
    found: dict[str, Any] = {}
    while used_s and not found and sum(used_s.values()) < cpu_s:
        name = min(used_s, key=lambda each: used_s[each])
        seed = first_seed + seeds[name]
        begin_s = time.process_time()
        found = _find_in(name, seed)
        used_s[name] += time.process_time() - begin_s
        seeds[name] += 1
    return {**found, "seeds": sum(seeds.values()), "cpu_s": round(sum(used_s.values()), 2)}


def _find_in(name: str, seed: int) -> dict[str, Any]:
    world = WORLDS[name]
    place = {"world": name, "seed": seed, "strategy": world.strategies[seed % len(world.strategies)].name}
    try:
        violation = _run_seed(world, seed)
    except Exception as error:  # noqa: BLE001 - a mutant may fail in any way, and each way shows the mutant
        return {**place, "invariant": type(error).__name__, "message": str(error)[:400]}
    if violation is None:
        return {}
    return {**place, "invariant": violation.invariant, "message": violation.message[:400]}


def _run_seed(world: ZooWorld, seed: int) -> Any:
    strategy = world.strategies[seed % len(world.strategies)]
    return strategy.applied(find_target(world.reference)).run(seed).violation


def main(arguments: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    ways: dict[str, Callable[..., Any]] = {
        "reach": reach,
        "hunt": hunt_worlds,
        "hunt by coverage": hunt_by_coverage,
        "replay": fails,
    }
    result = ways[arguments[0]](**given)
    return {"package": str(Path(kedge.__file__).parent), "result": result}


if __name__ == "__main__":
    answer = main(sys.argv[1:], json.load(sys.stdin))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
