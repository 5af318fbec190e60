"""One-way messages between hosts: `Host.send`. A message may arrive late, twice, out of order or never.

Built on `network`; `calls` is the form with a reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedge.sim.kernel.fault_registry import FAULTS, MESSAGE
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.lasting_faults import DELAYS_S
from kedge.sim.kernel.strands import HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

MESSAGE_FAULTS = FAULTS.kinds_at(MESSAGE)


def send_message(world: SimWorld, source: Host, target: Host, name: str, message: Any) -> None:
    """Send one message, one way."""
    text = f"message {name}"
    fault = world.faults.at(text, f"{source.name}>{target.name}", MESSAGE_FAULTS)
    if fault == "lose":
        return
    extra_s = world.faults.pick("long the delay is", DELAYS_S) if fault == "delay" else 0.0
    if world.network.carry is not None:
        message = world.network.carry(message)

    def arrive(process: HostProcess) -> None:
        handler = target.handlers.get(name) if target.up else None
        if handler is not None:
            world.loop.call_on(process, handler, message)

    for _ in range(2 if fault == "duplicate" else 1):
        world.network.transmit(source, target, arrive, what=text, extra_s=extra_s)
