"""The simulated driver passes the conformance suite of drivers, check by check, in virtual time."""

from __future__ import annotations

import pytest
from tests.kit.agent import pod_view, without_faults

from kedge.agent.conformance import Behaviour, check_driver, check_names
from kedge.api.views import PodView
from kedge.api.wellknown import SIM_EXIT_CODE_LABEL, SIM_IGNORES_SIGTERM_LABEL, SIM_RUN_S_LABEL
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.kernel import Simulation

_LABELS = {
    Behaviour.RUNS: {},
    Behaviour.ENDS_WITH_3: {SIM_RUN_S_LABEL: "0.1", SIM_EXIT_CODE_LABEL: "3"},
    Behaviour.IGNORES_SIGTERM: {SIM_IGNORES_SIGTERM_LABEL: "true"},
}


class SimulatedSubject:
    def __init__(self, sim: Simulation) -> None:
        self.driver = SimulatedDriver(sim, sim.host("node-a"), "node-a")

    def pod(self, uid: str, behaviour: Behaviour, containers: int = 1) -> PodView:
        made = [{"name": f"c{n}", "image": "x"} for n in range(containers)]
        return pod_view(metadata={"uid": uid, "labels": _LABELS[behaviour]}, containers=made)

    async def replace_driver(self) -> None:
        """The driver is the machine: an agent that is restarted gets the same one."""


@pytest.mark.parametrize("name", check_names())
def test_the_simulated_driver(name: str) -> None:
    async def program(sim: Simulation) -> None:
        await check_driver(SimulatedSubject(sim), name)

    without_faults(program)
