"""The targets of the zoo by reference, and the finds in kept files: entry, safeguard and strategy.

`hunt` runs the targets and keeps the finds; `kedge replay` runs them again, with the same safeguard taken out.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from kedge.sim.kernel import Artefact, Simulation, SimulationTarget, find_target
from kedge.sim.kernel.targets import reference_to
from kedge.sim.zoo.entry import UnknownZooEntry, entry_named
from kedge.sim.zoo.strategies import Strategy
from kedge.sim.zoo.worlds import WORLDS

ATTACHMENT = "zoo"


class ZooFind(msgspec.Struct, frozen=True):
    """The attachment of a find."""

    entry: str
    safeguard: str
    """A description of the safeguard that was taken out."""
    strategy: str


def entry_target(entry: str, strategy: str) -> SimulationTarget:
    """One strategy against one entry: its safeguard is taken out around each run.

    Raises:
        UnknownZooEntry: the zoo has no such entry, or its world no such strategy.
    """
    bug = entry_named(entry)
    aim = _strategy(bug.world, strategy)
    aimed = aim.applied(find_target(WORLDS[bug.world].reference))
    find = msgspec.to_builtins(ZooFind(bug.name, bug.safeguard, aim.name))

    async def program(sim: Simulation) -> object:
        sim.attach(ATTACHMENT, find)
        return await aimed.program(sim)

    reference = reference_to(f"{__name__}:{entry_target.__name__}", {"entry": bug.name, "strategy": aim.name})
    return replace(aimed, program=program, around=bug.patch, reference=reference)


def world_target(world: str, strategy: str) -> SimulationTarget:
    """One strategy in an unmodified world.

    Raises:
        UnknownZooEntry: the zoo has no such world, or the world no such strategy.
    """
    if world not in WORLDS:
        raise UnknownZooEntry(f"the zoo has no world {world!r}: it has {', '.join(WORLDS)}")
    aim = _strategy(world, strategy)
    reference = reference_to(f"{__name__}:{world_target.__name__}", {"world": world, "strategy": aim.name})
    return replace(aim.applied(find_target(WORLDS[world].reference)), reference=reference)


def _strategy(world: str, name: str) -> Strategy:
    found = next((each for each in WORLDS[world].strategies if each.name == name), None)
    if found is None:
        raise UnknownZooEntry(f"the world {world} has no strategy {name!r}: use the kedge that kept the find")
    return found


def zoo_find(artefact: Artefact) -> ZooFind | None:
    """The find in a kept file; None for another run."""
    found = artefact.attachments.get(ATTACHMENT)
    return None if found is None else msgspec.convert(found, ZooFind)
