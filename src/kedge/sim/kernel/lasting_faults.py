"""Faults of hosts that outlast one message: crashes, pauses, partitions, and the clock or CPU a host starts with.

How long each lasts is a choice on the faults stream. `calls` and `connections` strike with them at their fault points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.sim.kernel.fault_registry import FAULTS, HOST_BIRTH
from kedge.sim.kernel.hosts import Host

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

BIRTH_FAULTS = FAULTS.kinds_at(HOST_BIRTH)
DELAYS_S = (0.05, 0.5, 2.0, 8.0)
PARTITIONS_S = (0.5, 3.0, 15.0)
OFFSETS_S = (-0.5, 0.5, -60.0, 60.0, 86_400.0)
PAUSES_S = (0.2, 3.0, 12.0)
DOWNTIMES_S = (0.0, 0.5, 5.0, 30.0)


def crash_for_a_while(world: SimWorld, host: Host) -> None:
    """Crash a restartable host, and restart it after a drawn time."""
    if not host.restartable or not host.up:
        return
    downtime_s = world.faults.pick(f"long {host.name} is down", DOWNTIMES_S)
    host.crash()
    dead = host.process

    def come_back() -> None:
        if host.process is dead:
            host.restart()

    world.loop.call_later(downtime_s, come_back, context=world.context)


def pause_for_a_while(world: SimWorld, host: Host) -> None:
    """Pause a host for a drawn time, as a long garbage collection or a suspended machine does."""
    if host.paused or not host.up:
        return
    duration_s = world.faults.pick(f"long {host.name} is paused", PAUSES_S)
    host.pause()
    paused = host.process

    def go_on() -> None:
        if host.process is paused:
            host.resume()

    world.loop.call_later(duration_s, go_on, context=world.context)


def cut_for_a_while(world: SimWorld, one: Host, other: Host) -> None:
    """Partition two hosts for a drawn time, in both directions or in one."""
    pair = f"{one.name}|{other.name}"
    source, target, both_ways = world.faults.pick(
        f"{pair} is cut", ((one, other, True), (one, other, False), (other, one, False))
    )
    partition = world.network.partition([source], [target], both_ways=both_ways)
    duration_s = world.faults.pick(f"long {pair} is cut", PARTITIONS_S)
    world.loop.call_later(duration_s, partition.heal, context=world.context)


def draw_birth_faults(world: SimWorld, host: Host) -> None:
    """Draw once whether a new host has a wrong, fast or slow clock, or a slow CPU."""
    match world.faults.at(HOST_BIRTH, host.name, BIRTH_FAULTS):
        case "wrong clock":
            host.skew(offset_s=world.faults.pick(f"wrong the clock of {host.name} is", OFFSETS_S))
        case "fast clock":
            host.skew(rate=world.faults.pick(f"fast the clock of {host.name} is", (1.001, 1.05)))
        case "slow clock":
            host.skew(rate=world.faults.pick(f"slow the clock of {host.name} is", (0.999, 0.95)))
        case "slow cpu":
            host.slow(world.faults.pick(f"slow {host.name} is", (0.000_1, 0.002)))
