"""Simulation targets: a program with the policy, faults and bounds it is run under, found again by name in any process.

`@simulate` makes one of an async function; `hunt`, `replay`, `determinism` and the pytest plugin run it. A reference is
`package.module:name` or `path/to/file.py:name` (`::` will do); it is what an artefact stores and a worker is sent. With
arguments, as in `package.module:name?key=value`, the name is a function that returns the target.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from kedge.errors import KedgeError
from kedge.sim.kernel.bounds import RunBounds
from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.faults import FaultPlan, Swarm
from kedge.sim.kernel.policies import Mixed, Pct, SchedulePolicy
from kedge.sim.kernel.simulation import MakeSimulation, Program, RunOutcome, Simulation, run

CALIBRATION_SEEDS = 4
"""Runs that measure how many choices a schedule of this program has."""
TARGET_ATTRIBUTE = "kedge_target"


class UnknownTarget(KedgeError):
    """There is no target of that name. Give `package.module:function` or `file.py:function`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTarget:
    """The inputs of a run, apart from its tape."""

    program: Program
    reference: str = ""
    """How another process finds it; empty if it cannot be found by name."""
    seeds: int = 100
    """How many seeds a test run tries."""
    policy: SchedulePolicy = field(default_factory=Mixed)
    faults: FaultPlan = field(default_factory=Swarm)
    bounds: RunBounds = field(default_factory=RunBounds)
    make_simulation: MakeSimulation = Simulation
    marks: tuple[str, ...] = ()
    """States that some seed of a hunt must reach, or the hunt proves nothing about them."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around each run: it may take a safeguard out of the components."""
    sources: tuple[Path, ...] = ()
    """Files beside the program's own that a run depends on."""

    def run(
        self, tape: Tape | int, *, lenient: bool = False, name_strands: bool = False, keep: bool = False
    ) -> RunOutcome:
        return run(
            self.program,
            tape,
            policy=self.policy,
            faults=self.faults,
            bounds=self.bounds,
            make_simulation=self.make_simulation,
            lenient=lenient,
            name_strands=name_strands,
            keep=keep,
            around=self.around,
        )

    def calibrated(self) -> SimulationTarget:
        """A copy whose PCT policies have the horizon that a run of this program takes."""
        policy = self.policy
        if not policy_needs_horizon(policy):
            return self
        strict = replace(self, policy=Pct(depth=1, horizon=1))  # without priority changes
        choices = max(len(strict.run(seed).tape.schedule) for seed in range(CALIBRATION_SEEDS))
        return replace(self, policy=with_horizon(policy, max(1, choices)))


def policy_needs_horizon(policy: SchedulePolicy) -> bool:
    match policy:
        case Pct():
            return policy.horizon == 0
        case Mixed():
            return any(policy_needs_horizon(part) for part in policy.parts)
    return False


def with_horizon(policy: SchedulePolicy, horizon: int) -> SchedulePolicy:
    match policy:
        case Pct(horizon=0):
            return replace(policy, horizon=horizon)
        case Mixed():
            return replace(policy, parts=tuple(with_horizon(part, horizon) for part in policy.parts))
    return policy


def simulate(
    *,
    seeds: int = 100,
    policy: SchedulePolicy | None = None,
    faults: FaultPlan | None = None,
    bounds: RunBounds | None = None,
    make_simulation: MakeSimulation = Simulation,
    marks: tuple[str, ...] = (),
) -> Callable[[Program], Callable[[], None]]:
    """Turn an async function that takes a `Simulation` into a test and a target for `kedge hunt`."""

    def decorate(program: Program) -> Callable[[], None]:
        target = SimulationTarget(
            program=program,
            reference=f"{program.__module__}:{program.__qualname__}",
            seeds=seeds,
            policy=policy or Mixed(),
            faults=faults or Swarm(),
            bounds=bounds or RunBounds(),
            make_simulation=make_simulation,
            marks=marks,
        )

        def test() -> None:
            for seed in range(target.seeds):
                outcome = target.run(seed)
                if outcome.violation is not None:
                    raise AssertionError(f"seed {seed}: {outcome.violation}\n{outcome.timeline()}")

        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(test, name, getattr(program, name))
        setattr(test, TARGET_ATTRIBUTE, target)
        return test

    return decorate


def reference_to(factory: str, arguments: Mapping[str, str]) -> str:
    """The reference of the target that `factory` (`package.module:name`) returns for these arguments."""
    return f"{factory}?{urlencode(arguments)}"


def find_target(reference: str) -> SimulationTarget:
    """The target a reference names; any async function of one argument is a target."""
    name, query, arguments = reference.partition("?")
    found = find_object(name, "a target", "an async function of one argument")
    if query:
        if not callable(found):
            raise UnknownTarget(f"{name} is a {type(found).__name__}: only a function takes arguments after `?`")
        found = found(**dict(parse_qsl(arguments, keep_blank_values=True)))
    target = found if isinstance(found, SimulationTarget) else getattr(found, TARGET_ATTRIBUTE, None)
    if target is None:
        if not callable(found):
            raise UnknownTarget(
                f"{reference} is a {type(found).__name__}: a target is an async function of one argument"
            )
        target = SimulationTarget(program=found)
    return replace(target, reference=reference)


def find_object(reference: str, what: str, kind: str = "a function") -> Any:
    """The object that `package.module:name` or `path/to/file.py:name` names.

    Raises:
        UnknownTarget: there is none. `what` and `kind` are for the message.
    """
    place, _, name = reference.replace("::", ":").rpartition(":")
    if not place or not name:
        raise UnknownTarget(f"{reference!r} is not {what}: give package.module:function or file.py:function, {kind}")
    found: Any = _load(place, reference)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UnknownTarget(f"{place} has nothing called {name}: check the name in {reference!r}")
    return found


def _load(place: str, reference: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")  # a target may import modules beside it, as with `python -m`
    try:
        if place.endswith(".py"):
            return _load_file(Path(place))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise UnknownTarget(f"cannot load {reference!r}: {error}; run this where the module can be imported") from error


def _load_file(path: Path) -> ModuleType:
    full = path.resolve()
    name = f"kedge_target_{full.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(full):
        return loaded
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None or not full.exists():
        raise UnknownTarget(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
