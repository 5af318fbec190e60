"""Volumes, limits and messages of real processes, on machines with and without mount namespaces and control groups."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit.confinement import CPU_GROUPS, GROUPS, web
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, alive, child_pid, driver_in, ended, keeper_pid, log_of, only, start, start_pod
from tests.kit.unified_groups import UnifiedGroups

from kedge.agent.core.config import Surroundings, container_setup
from kedge.agent.core.driver import CannotStart, ContainerSetup
from kedge.agent.process import ProcessDriver, cgroups, mounts
from kedge.agent.process.driver import node_conditions
from kedge.api.views import LifecycleHook, PodView
from kedge.api.views.probes import ExecAction
from kedge.keys import Key

SETTINGS = Key("ConfigMap", "default", "settings")
NAMESPACES = pytest.mark.skipif(not mounts.are_possible(), reason="this machine allows no mount namespace")


async def run(driver: ProcessDriver, pod: PodView, **objects: dict[str, Any]) -> None:
    known: dict[Key, dict[str, Any] | None] = {
        Key("ConfigMap", "default", name): body for name, body in objects.items()
    }
    await start_pod(driver, pod, pod.spec.containers[0], objects=known)


def volume(source: dict[str, Any], **mount: Any) -> dict[str, Any]:
    return {
        "spec": {"volumes": [{"name": "v", **source}]},
        "volumeMounts": [{"name": "v", "mountPath": "/kedge-test-mount/v", **mount}],
    }


# -- volumes -------------------------------------------------------------------------------------------


@on_loop
async def test_a_volume_has_its_path_in_a_variable_everywhere(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        pod = web("sh", "-c", "cat $KEDGE_VOLUME_V/color; ls -lL $KEDGE_VOLUME_V/color", **volume(
            {"configMap": {"name": "settings", "defaultMode": 0o440}}))  # fmt: skip
        await run(driver, pod, settings={"data": {"color": "blue\n"}})
        await eventually(ended(driver))
        assert log_of(tmp_path).startswith("blue\n-r--r-----")


@NAMESPACES
@on_loop
async def test_a_volume_is_mounted_where_the_machine_has_no_such_folder(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        pod = web("sh", "-c", "cd /kedge-test-mount/v; cat color; touch x; ls /usr >/dev/null && exec sleep 600",
                  **volume({"configMap": {"name": "settings"}}))  # fmt: skip
        await run(driver, pod, settings={"data": {"color": "blue\n"}})
        await eventually(lambda: "Read-only" in log_of(tmp_path))
        assert log_of(tmp_path).startswith("blue\n")
        assert not os.path.exists("/kedge-test-mount")  # noqa: ASYNC240, PTH110
        hook = LifecycleHook(exec=ExecAction(command=("test", "-e", "/kedge-test-mount/v/color")))
        assert await driver.run_hook(POD, hook, within_s=10) == ""


@NAMESPACES
@on_loop
async def test_a_mount_in_an_existing_folder_hides_nothing_beside_it(tmp_path: Path) -> None:
    beside = tmp_path / "machine"
    beside.mkdir()
    (beside / "file").write_text("here\n")
    (beside / "link").symlink_to("file")
    parts = volume({"emptyDir": {}}, mountPath=f"{beside}/new/deep", subPath="a/b")
    async with driver_in(tmp_path / "node") as driver:
        await run(driver, web("sh", "-c", f"cd {beside}; cat file link; echo x > new/deep/y; ls new/deep", **parts))
        await eventually(ended(driver))
        assert log_of(tmp_path / "node") == "here\nhere\ny\n"
        assert sorted(each.name for each in beside.iterdir()) == ["file", "link"]
        assert (next((tmp_path / "node").glob("pods/*/volumes/v/a/b")) / "y").read_text() == "x\n"


def folders_of(node: Path) -> list[Path]:
    """The folders of the volume `v`."""
    return list(node.glob("pods/*/volumes/v"))


def mounted_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]


MEMORY = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}


@NAMESPACES
@on_loop
async def test_a_volume_in_memory_is_a_tmpfs_of_its_size_for_the_whole_pod_until_the_pod_is_removed(
    tmp_path: Path,
) -> None:
    async with driver_in(tmp_path) as driver:
        write = "cd /kedge-test-mount/v; echo kept >first; head -c 2000000 /dev/zero >big || stat -f -c %T ."
        await run(driver, web("sh", "-c", write, **volume(MEMORY)))
        await eventually(ended(driver))
        assert "No space left" in log_of(tmp_path)
        assert log_of(tmp_path).endswith("tmpfs\n")
        assert [each.is_mount() for each in folders_of(tmp_path)] == [True]
        await driver.forget(POD)
        again = POD._replace(attempt=1)
        read = web("cat", "/kedge-test-mount/v/first", **volume(MEMORY))
        await start_pod(driver, read, read.spec.containers[0], identity=again)
        await eventually(ended(driver))
        assert (await only(driver)).exit_code == 0, "a restarted container finds what the volume has"
        assert log_of(tmp_path).endswith("kept\n")
        await driver.forget(again)
        await driver.remove(POD.pod_uid)
        assert folders_of(tmp_path) == []
        assert mounted_below(tmp_path) == []


@NAMESPACES
@on_loop
async def test_a_node_that_is_shut_down_leaves_no_volume_in_memory(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await run(driver, web("sleep", "600", **volume(MEMORY)))
        assert len(mounted_below(tmp_path)) == 1
    assert mounted_below(tmp_path) == []
    assert len(folders_of(tmp_path)) == 1


@on_loop
async def test_files_of_a_running_container_change_all_at_once_and_a_sub_path_does_not(tmp_path: Path) -> None:
    """The keys `a` and `b` always have the same value: a program that reads both must never see a difference."""
    folder = '"$(readlink $KEDGE_VOLUME_V/..data)"'
    program = f"cd $KEDGE_VOLUME_V; while :; do d={folder}; cmp -s $d/a $d/b; test $? = 1 && echo torn; cat a; done"
    pod = web("sh", "-c", program, **volume({"configMap": {"name": "s"}}))
    async with driver_in(tmp_path / "node") as driver:
        await run(driver, pod, s={"data": {"a": "one ", "b": "one "}})
        (folder_of,) = (tmp_path / "node").glob("pods/*/volumes/v")
        bound = (folder_of / "a").resolve()
        assert bound.read_text() == "one "
        await eventually(lambda: "one" in log_of(tmp_path / "node"))
        await driver.update_volumes(pod, files_of(pod, {"data": {"a": "two ", "b": "two ", "c": "two "}}))
        await eventually(lambda: "two" in log_of(tmp_path / "node"))
        await driver.update_volumes(pod, files_of(pod, {"data": {"a": "three ", "b": "three ", "c": "three "}}))
        await eventually(lambda: "three" in log_of(tmp_path / "node"))
        assert "torn" not in log_of(tmp_path / "node")
        assert not bound.exists(), "the version before is removed"
        before = sorted(each.name for each in folder_of.iterdir())
        assert before == ["..data", before[1], "a", "b", "c"]
        await driver.update_volumes(pod, files_of(pod, {"data": {"a": "three ", "b": "three ", "c": "three "}}))
        assert sorted(each.name for each in folder_of.iterdir()) == before, "nothing is written without a change"
        await driver.update_volumes(pod, files_of(pod, {"data": {"a": "four "}}))
        assert sorted(each.name for each in folder_of.iterdir() if not each.name.startswith("..")) == ["a"]


@NAMESPACES
@on_loop
async def test_a_mount_shows_a_change_and_a_mount_of_a_sub_path_keeps_its_file(tmp_path: Path) -> None:
    parts = volume({"configMap": {"name": "s"}})
    parts["volumeMounts"].append({"name": "v", "mountPath": "/kedge-test-mount/one", "subPath": "a"})
    pod = web("sleep", "600", **parts)
    async with driver_in(tmp_path) as driver:
        await run(driver, pod, s={"data": {"a": "old"}})
        await driver.update_volumes(pod, files_of(pod, {"data": {"a": "new"}}))
        both = "test $(cat /kedge-test-mount/v/a) = new && test $(cat /kedge-test-mount/one) = old"
        hook = LifecycleHook(exec=ExecAction(command=("sh", "-c", both)))
        assert await driver.run_hook(POD, hook, within_s=10) == ""


def files_of(pod: PodView, body: dict[str, Any]) -> ContainerSetup:
    around = Surroundings(objects={Key("ConfigMap", "default", "s"): body})
    return container_setup(pod, pod.spec.containers[0], around)


@on_loop
async def test_a_path_of_the_machine_is_checked_and_a_link_cannot_leave_a_volume(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "out").symlink_to("/etc")
    host = {"path": str(tmp_path / "real"), "type": "Directory"}
    async with driver_in(tmp_path / "node") as driver:
        for source, mount, text in (
            ({**host, "path": str(tmp_path / "none")}, {}, "does not exist"),
            ({**host, "type": "Socket"}, {}, "is not a Socket"),
            (host, {"subPath": "out"}, "leaves volume v"),
        ):
            with pytest.raises(CannotStart, match=text):
                await run(driver, web("true", **volume({"hostPath": source}, **mount)))
        assert await driver.processes() == ()


@on_loop
async def test_files_of_keys_that_were_removed_are_gone_at_the_next_start(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        pod = web("sh", "-c", "ls $KEDGE_VOLUME_V", **volume({"configMap": {"name": "settings"}}))
        await run(driver, pod, settings={"data": {"a": "1", "b": "2"}})
        await eventually(ended(driver))
        known = {SETTINGS: {"data": {"b": "3"}}}
        await start_pod(driver, pod, pod.spec.containers[0], identity=POD._replace(attempt=1), objects={**known})
        await eventually(lambda: log_of(tmp_path) == "a\nb\nb\n")


# -- messages ------------------------------------------------------------------------------------------


@on_loop
async def test_the_message_of_a_process_is_in_its_status_and_else_the_end_of_its_log(tmp_path: Path) -> None:
    async with driver_in(tmp_path / "a") as driver:
        await run(driver, web("sh", "-c", "echo why > $KEDGE_TERMINATION_LOG; echo log; exit 1"))
        await eventually(ended(driver))
        assert (await only(driver)).message == "why\n"
    async with driver_in(tmp_path / "b") as driver:
        pod = web("sh", "-c", "echo one; echo two; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
        await run(driver, pod)
        await eventually(ended(driver))
        assert (await only(driver)).message == "one\ntwo\n"


def machine_has_message() -> bool:
    return Path("/dev/termination-log").exists()


@NAMESPACES
@on_loop
async def test_the_default_path_of_the_message_is_a_file_of_the_container_alone(tmp_path: Path) -> None:
    before = machine_has_message()
    async with driver_in(tmp_path) as driver:
        program = "echo why > /dev/termination-log; echo quiet > /dev/null; ls /dev/shm > /dev/null; exit 1"
        await run(driver, web("sh", "-c", program))
        await eventually(ended(driver))
        found = await only(driver)
        assert (found.exit_code, found.message, log_of(tmp_path)) == (1, "why\n", "")
    assert machine_has_message() == before, "nothing is created on the machine"


# -- limits --------------------------------------------------------------------------------------------


@GROUPS
@on_loop
async def test_a_process_over_its_memory_limit_is_oom_killed(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        program = "x = bytearray(256 * 1024 * 1024); x[::4096] = b'1' * len(x[::4096])"
        await run(
            driver, web(sys.executable, "-S", "-c", program, resources={"limits": {"memory": "48Mi", "cpu": "1"}})
        )
        await eventually(ended(driver))
        found = await only(driver)
        assert (found.exit_code, found.reason) == (137, "OOMKilled")


@GROUPS
@on_loop
async def test_a_child_that_left_everything_is_killed_by_its_group_after_the_keeper_was_killed(tmp_path: Path) -> None:
    """It has no marker, no session, no log and no parent that are evidence."""
    child = "import os,time; os.setsid(); open('child','w').write(str(os.getpid())); time.sleep(600)"
    program = (
        f"import os,sys\nif os.fork()==0:\n  os.setsid()\n  if os.fork()==0:\n    n=os.open('/dev/null',2)\n"
        f"    for i in (0,1,2): os.dup2(n,i)\n    os.execve(sys.executable,[sys.executable,'-c',{child!r}],{{}})\n"
        "  os._exit(0)\nimport time; time.sleep(600)"
    )
    async with driver_in(tmp_path) as driver:
        await start(driver, sys.executable, "-c", program)
        await eventually(lambda: child_pid(tmp_path) is not None)
        pid = child_pid(tmp_path)
        assert pid is not None
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        assert (await only(driver)).running
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        await eventually(lambda: not alive(pid))


def test_a_machine_without_abilities_states_so_in_its_conditions() -> None:
    none = node_conditions({"memory": False, "cpu": False, "kill": False, "mounts": False})
    assert [(each.type, each.status) for each in none] == [("ResourceLimits", False), ("VolumeMounts", False)]
    assert "memory and cpu are not enforced" in none[0].message
    assert "KEDGE_VOLUME_NAME" in none[1].message
    half = node_conditions({"memory": True, "cpu": False, "kill": True, "mounts": True})
    assert [(each.status, each.reason) for each in half] == [(False, "CgroupsUnavailable"), (True, "MountNamespaces")]


def test_no_control_groups_at_all_limit_nothing_and_harm_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_own_groups", dict)
    tree = cgroups.CgroupTree("kedge-test-none")
    assert tree.abilities == {"memory": False, "cpu": False, "kill": False}
    groups = tree.make("p", cgroups.GroupLimits(1 << 20, 100))
    assert groups == []
    assert not cgroups.kill(groups)
    assert not cgroups.was_out_of_memory(groups)
    tree.close()


def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str) -> tuple[UnifiedGroups, Path]:
    """Version 2 alone, and this process's own group in it."""
    kernel = UnifiedGroups(tmp_path / "unified", monkeypatch, controllers=controllers)
    own = kernel.root / "slice" / "agent"
    own.parent.mkdir()
    for each in controllers.split():
        (kernel.root / "cgroup.subtree_control").write_text(f"+{each}")
    own.mkdir()
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": [own]})
    return kernel, own


def test_a_group_that_was_delegated_passes_its_controllers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses controllers below a group with processes, so the keeper must not be in it."""
    _, own = unified(tmp_path, monkeypatch, "cpu memory pids")
    (own.parent / "cgroup.subtree_control").write_text("+memory")
    (own.parent / "cgroup.subtree_control").write_text("+cpu")
    tree = cgroups.CgroupTree("kedge-test")
    assert tree.abilities == {"memory": True, "cpu": True, "kill": True}
    (group,) = tree.make("p", cgroups.GroupLimits(1 << 20, 250))
    assert group == str(own / "kedge-test" / "p")
    assert (own / "kedge-test" / "p" / "memory.max").read_text() == str(1 << 20)
    assert (own / "kedge-test" / "p" / "cpu.max").read_text() == "25000 100000"
    assert sorted((own / "kedge-test" / "p" / "cgroup.controllers").read_text().split()) == ["cpu", "memory"]


def test_groups_are_beside_a_group_with_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, own = unified(tmp_path, monkeypatch, "cpu memory")
    kernel.busy.add(own)
    tree = cgroups.CgroupTree("kedge-test")
    assert tree.abilities == {"memory": True, "cpu": True, "kill": True}
    assert tree.make("p", cgroups.GroupLimits()) == [str(own.parent / "kedge-test" / "p")]
    assert not (own / "kedge-test").exists(), "the group that could not be used is removed"


def test_a_tree_with_one_controller_limits_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, own = unified(tmp_path, monkeypatch, "cpu")
    kernel.busy.add(own)
    tree = cgroups.CgroupTree("kedge-test")
    assert tree.abilities == {"memory": False, "cpu": True, "kill": True}
    (group,) = tree.make("p", cgroups.GroupLimits(1 << 20, 250))
    assert not Path(group, "memory.max").exists()


def test_without_controllers_groups_still_list_what_a_process_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, own = unified(tmp_path, monkeypatch, "cpu memory")
    kernel.busy |= {own, own.parent}
    tree = cgroups.CgroupTree("kedge-test")
    assert tree.abilities == {"memory": False, "cpu": False, "kill": True}
    assert tree.make("p", cgroups.GroupLimits(1 << 20, 250)) == [str(own / "kedge-test" / "p")]


@CPU_GROUPS
@on_loop
async def test_a_process_above_its_limit_of_cpu_is_throttled(tmp_path: Path) -> None:
    """An endless loop that may use a tenth of a core: the kernel counts the periods in which it was held up."""
    async with driver_in(tmp_path) as driver:
        pod = web("sh", "-c", "while :; do :; done", resources={"limits": {"cpu": "100m"}})
        await start_pod(driver, pod, pod.spec.containers[0])
        groups = [Path(each) for each in json.loads(records_of(tmp_path)[0].read_text())["cgroups"]]

        def throttled() -> bool:
            stats = [each / "cpu.stat" for each in groups if (each / "cpu.stat").exists()]
            words = [word for each in stats for word in each.read_text().split()]
            return "nr_throttled" in words and int(words[words.index("nr_throttled") + 1]) > 0

        await eventually(throttled)


def records_of(node: Path) -> list[Path]:
    return list(node.glob("processes/*.json"))


def group_with(folder: Path, **files: str) -> str:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


def test_usage_is_read_from_control_groups_of_either_version(tmp_path: Path) -> None:
    second = group_with(
        tmp_path / "v2",
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
        memory__current="1000\n",
        memory__stat="anon 300\ninactive_file 400\n",
    )
    assert cgroups.usage([second]) == (2.5, 600)
    memory = group_with(
        tmp_path / "memory", memory__usage_in_bytes="900", memory__stat="inactive_file 1\ntotal_inactive_file 200\n"
    )
    cpu = group_with(tmp_path / "cpu", cpuacct__usage="1500000000\n", cpu__stat="nr_periods 0\nnr_throttled 0\n")
    assert cgroups.usage([memory, cpu]) == (1.5, 700)
    assert cgroups.usage([str(tmp_path / "gone")]) == (None, None)
    assert cgroups.usage([]) == (None, None)


@GROUPS
@on_loop
async def test_usage_counts_memory_and_children_that_have_ended(tmp_path: Path) -> None:
    """The grandchild leaves the tree of its parent and ends: `/proc` alone does not find its use."""
    program = (
        "import os, time\n"
        "x = bytearray(64 << 20); x[::4096] = bytes(len(x) // 4096)\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < 0.5: pass\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(600)\n"
    )
    async with driver_in(tmp_path) as driver:
        await start(driver, sys.executable, "-c", program)

        async def uses_both() -> bool:
            used = (await driver.consumption())[POD]
            return (used.memory_bytes or 0) >= 64 << 20 and used.cpu_s >= 0.5

        await eventually(uses_both)
