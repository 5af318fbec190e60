"""Records of an incident over HTTP: each component sends those of its own processes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.access import ADA, ADMIN, agent_of, guarded_api
from tests.kit.loops import on_loop

from kedge.api.access import AUTHENTICATED, CONTROLLERS, NODES, SCHEDULERS, Caller
from kedge.env import system_env
from kedge.server.incidents import IncidentFolder

SCHEDULER = Caller("system:kube-scheduler", (SCHEDULERS, AUTHENTICATED))
CONTROLLER = Caller("system:kube-controller-manager", (CONTROLLERS, AUTHENTICATED))


@pytest.mark.parametrize(
    ("caller", "process", "code"),
    [
        (agent_of("a"), "agent-a-0a1b2c3d", 200),
        (agent_of("a"), "agent-b-0a1b2c3d", 403),
        (agent_of("a"), "agent-a-b-0a1b2c3d", 403),
        (agent_of("a-b"), "agent-a-b-0a1b2c3d", 200),
        (agent_of("a"), "agent-a", 403),
        (agent_of("a"), "scheduler-0a1b2c3d", 403),
        (agent_of("a"), "server", 403),
        (SCHEDULER, "scheduler-0a1b2c3d", 200),
        (SCHEDULER, "controllers-0a1b2c3d", 403),
        (CONTROLLER, "controllers-0a1b2c3d", 200),
        (CONTROLLER, "agent-a-0a1b2c3d", 403),
        (Caller("both", (SCHEDULERS, NODES, AUTHENTICATED)), "scheduler-0a1b2c3d", 200),
        (ADMIN, "agent-a-0a1b2c3d", 200),
        (ADA, "agent-a-0a1b2c3d", 403),
    ],
)
@on_loop
async def test_a_component_sends_records_of_its_own_processes_alone(
    caller: Caller, process: str, code: int, tmp_path: Path
) -> None:
    async with guarded_api() as api:
        folder = api.handler.incidents = IncidentFolder(tmp_path, system_env())
        folder.begin("first", process)  # by the process itself: its records are there already
        for path in (f"{process}/part-1?at=0", process, f"{process}?done=true"):
            found, _ = await api.send(caller, "POST", f"/kedge/incidents/first/{path}", "records")
            assert found == code, path
        (listed,) = folder.find("first").processes
    assert bool(listed.parts) == listed.done == (code == 200)


@on_loop
async def test_a_refusal_names_the_processes_that_an_agent_may_send(tmp_path: Path) -> None:
    async with guarded_api() as api:
        api.handler.incidents = IncidentFolder(tmp_path, system_env())
        _, refusal = await api.send(agent_of("a"), "POST", "/kedge/incidents/first/scheduler-0a1b2c3d")
    assert refusal["message"].endswith("sends records of its own processes alone: agent-a-RUN")
