"""Resizes of real processes in their control groups, and the decisions of an agent about them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.agent import NOW, pod_view
from tests.kit.confinement import GROUPS, web
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, driver_in, ended, only, start_pod

from kedge.agent.core.driver import CannotResize, ContainerProcess, Identity
from kedge.agent.core.resize import ResizeStage, Verdict, decide, needs_decision, plan_resize
from kedge.agent.process import cgroups
from kedge.api.quantity import parse_quantity
from kedge.api.views import Container, NodeView, ResourceList, ResourceRequirements
from kedge.api.views.schema import decoder_of
from kedge.placement.ledger import Claim, ClaimState, Ledger


def requirements(requests: dict[str, str], limits: dict[str, str] | None = None) -> ResourceRequirements:
    def amounts(given: dict[str, str]) -> ResourceList:
        return ResourceList({name: parse_quantity(text) for name, text in given.items()})

    return ResourceRequirements(requests=amounts(requests), limits=amounts(limits or {}))


def with_limits(container: Container, **limits: str) -> Container:
    return msgspec.structs.replace(container, resources=requirements({}, limits))


def work_folder(folder: Path) -> Path:
    return next(folder.glob("**/work"))


# -- control groups ----------------------------------------------------------------------------------


@GROUPS
@on_loop
async def test_the_limits_of_a_running_process_change_and_it_is_not_restarted(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        program = (
            "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
            "x = bytearray(96 << 20); x[::4096] = b'1' * len(x[::4096]); open('done', 'w').close(); time.sleep(600)"
        )
        pod = web(sys.executable, "-S", "-c", program, resources={"limits": {"memory": "48Mi", "cpu": "1"}})
        await start_pod(driver, pod, pod.spec.containers[0])
        pid = await driver.pid_of(POD.pod_uid)
        await driver.resize(POD, with_limits(pod.spec.containers[0], memory="256Mi", cpu="500m"))
        work = work_folder(tmp_path)
        (work / "go").touch()
        await eventually((work / "done").exists)
        process = await only(driver)
        assert process.running, "it uses more than the limit that it was started with"
        assert await driver.pid_of(POD.pod_uid) == pid
        assert process.resources == requirements({}, {"memory": "256Mi", "cpu": "500m"})
        with pytest.raises(CannotResize, match="would be killed at"):
            await driver.resize(POD, with_limits(pod.spec.containers[0], memory="32Mi", cpu="500m"))
        assert (await only(driver)).resources == process.resources
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))


@pytest.mark.parametrize(("memory", "cpu"), [("memory.max", "cpu.max"), ("memory.limit_in_bytes", "cpu.cfs_quota_us")])
def test_both_versions_of_control_groups_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, cpu: str
) -> None:
    """The kernel makes the files of a real group; here they are plain files."""
    monkeypatch.setattr(cgroups, "_own_groups", dict)
    tree = cgroups.CgroupTree("kedge-test-files")
    tree._bases, tree._memory, tree._cpu = [tmp_path], (tmp_path, memory), (tmp_path, cpu)
    tree.make("p", cgroups.GroupLimits(100, 1000))
    group = tmp_path / "p"
    assert (group / memory).read_text() == "100"
    tree.resize("p", cgroups.GroupLimits(300, 250))
    assert (group / memory).read_text() == "300"
    assert (group / cpu).read_text() == ("25000 100000" if cpu == "cpu.max" else "25000")
    tree.resize("p", cgroups.GroupLimits(None, None))
    assert (group / memory).read_text() == "300"
    (group / "memory.current").write_text("250")
    with pytest.raises(ValueError, match="uses 250 bytes of memory"):
        tree.resize("p", cgroups.GroupLimits(200, 250))
    assert (group / memory).read_text() == "300"
    with pytest.raises(ValueError, match="are gone"):
        tree.resize("other", cgroups.GroupLimits(1, 1))


# -- decisions ---------------------------------------------------------------------------------------


def sized(*cpus: str, policy: str = "", **status: Any) -> Any:
    containers = [
        {
            "name": f"c{number}",
            "image": "x",
            "resources": {"requests": {"cpu": cpu}},
            **({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]} if policy else {}),
        }
        for number, cpu in enumerate(cpus)
    ]
    return pod_view(metadata={"uid": "u", "name": "web", "generation": 2}, containers=containers, **status)


def process(container: str, cpu: str, **parts: Any) -> ContainerProcess:
    identity = Identity("u", container, 0, 1, "n")
    made = {"running": True, "started_at": NOW, "resources": requirements({"cpu": cpu}), **parts}
    return ContainerProcess(identity=identity, namespace="default", pod="web", **made)


def node_with(cpu: str) -> NodeView:
    view: NodeView = decoder_of(NodeView).decode(
        msgspec.json.encode(
            {"metadata": {"name": "n", "uid": "n"}, "status": {"allocatable": {"cpu": cpu, "pods": "9"}}}
        )
    )
    return view


def ledger_with(own: int, other: int, *, granted: int | None = None) -> Ledger:
    mine = {"cpu": granted, "pods": 1} if granted is not None else None
    claims = {
        "u": Claim("default", "web", ClaimState.BOUND, {"cpu": own, "pods": 1}, granted=mine),
        "v": Claim("default", "other", ClaimState.BOUND, {"cpu": other, "pods": 1}),
    }
    return Ledger("n", "n", {"cpu": own + other, "pods": 2}, claims)


@pytest.mark.parametrize(
    ("wanted", "granted", "other", "stage"),
    [
        ("500m", 300, 0, ResizeStage.FITS),
        ("500m", 500, 900, ResizeStage.GRANTED),
        ("200m", 300, 900, ResizeStage.GRANTED),
        ("500m", 300, 600, ResizeStage.DEFERRED),
        ("2", 300, 0, ResizeStage.INFEASIBLE),
    ],
)
def test_a_node_decides_by_its_ledger(wanted: str, granted: int, other: int, stage: ResizeStage) -> None:
    milli = max(granted, parse_quantity(wanted).milli)
    verdict = decide(sized(wanted), node_with("1"), ledger_with(milli, other, granted=granted))
    assert verdict.stage is stage
    if stage is ResizeStage.DEFERRED:
        expected = "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000"
        assert verdict.message == expected


def test_containers_that_get_more_wait_for_those_that_get_less() -> None:
    pod = sized("300m", "700m")
    before = [process("c0", "600m"), process("c1", "400m")]
    assert needs_decision(pod, before)
    first = plan_resize(pod, before, Verdict())
    assert [each.name for _, each in first.apply] == ["c0"]
    ended = [before[0], process("c1", "400m", running=False)]
    waiting = plan_resize(pod, ended, Verdict()).resources["c1"]
    assert waiting == requirements({"cpu": "400m"}), "nor is one started with more"
    after = [process("c0", "300m"), before[1]]
    assert [each.name for _, each in plan_resize(pod, after, Verdict()).apply] == ["c1"]
    assert not needs_decision(pod, [after[0], process("c1", "700m")])


def test_nothing_is_applied_before_it_is_granted() -> None:
    pod = sized("700m")
    for stage in (ResizeStage.FITS, ResizeStage.DEFERRED, ResizeStage.INFEASIBLE):
        plan = plan_resize(pod, [process("c0", "400m")], Verdict(stage))
        assert (plan.apply, plan.restart) == ((), frozenset())
        assert not plan.is_applied(pod)
    ended = [process("c0", "400m", running=False)]
    assert plan_resize(pod, ended, Verdict(ResizeStage.DEFERRED)).resources["c0"] == requirements({"cpu": "400m"})


def test_a_policy_decides_whether_the_container_is_restarted() -> None:
    pod = sized("700m", policy="RestartContainer")
    plan = plan_resize(pod, [process("c0", "400m")], Verdict())
    assert not plan.apply
    assert plan.restart == {"c0"}
