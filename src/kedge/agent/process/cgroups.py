"""Control groups of processes: limits of memory and CPU, and the list of everything that a process started.

Version 2 where its controllers can be used, else version 1 for each controller; a machine may have both. Groups are
made below the keeper's own group, or beside it, so a limit around both holds for pods too. Standard library only.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PERIOD_US = 100_000
_CPU_US_MIN = 1_000
"""The kernel refuses a smaller share of a period."""


class GroupLimits(NamedTuple):
    memory_bytes: int | None = None
    cpu_milli: int | None = None


class CgroupTree:
    """The groups of one keeper. `name` is unlike that of other keepers of the machine."""

    def __init__(self, name: str) -> None:
        self._bases: list[Path] = []
        self._memory: tuple[Path, str] | None = None
        """The folder and the file of memory limits."""
        self._cpu: tuple[Path, str] | None = None
        mounted = _own_groups()
        for unified in mounted.get("", ()):
            self._use_unified(unified, name)
        for controller, file in (("memory", "memory.limit_in_bytes"), ("cpu", "cpu.cfs_quota_us")):
            if getattr(self, f"_{controller}") is None:
                for group in mounted.get(controller, ())[:1]:
                    base = group / name
                    if _made(base) and (base / file).exists():
                        self._bases.append(base)
                        setattr(self, f"_{controller}", (base, file))

    @property
    def abilities(self) -> dict[str, bool]:
        return {"memory": self._memory is not None, "cpu": self._cpu is not None, "kill": bool(self._bases)}

    def make(self, process: str, limits: GroupLimits) -> list[str]:
        """Make the groups of a process. Returns their folders.

        Raises:
            OSError: the kernel refused a limit.
        """
        groups = [base / process for base in self._bases]
        for group in groups:
            group.mkdir(exist_ok=True)
        self._limit(process, limits)
        return [str(each) for each in groups]

    def resize(self, process: str, limits: GroupLimits) -> None:
        """Change the limits of a process that runs. One that is None stays as it is.

        Raises:
            OSError: the kernel refused a limit.
            ValueError: the process uses more memory than the new limit, and would be killed.
        """
        groups = [base / process for base in self._bases]
        if not all(group.exists() for group in groups):
            raise ValueError("the control groups of the process are gone")  # made before the keeper could use them
        _, held = usage([str(group) for group in groups])
        if limits.memory_bytes is not None and held is not None and held >= limits.memory_bytes:
            raise ValueError(f"the process uses {held} bytes of memory, and would be killed at {limits.memory_bytes}")
        self._limit(process, limits)

    def _limit(self, process: str, limits: GroupLimits) -> None:
        if limits.memory_bytes is not None and self._memory is not None:
            self._limit_memory(process, limits.memory_bytes)
        if limits.cpu_milli is not None and self._cpu is not None:
            base, file = self._cpu
            quota_us = max(_CPU_US_MIN, limits.cpu_milli * _PERIOD_US // 1000)
            text = f"{quota_us} {_PERIOD_US}" if file == "cpu.max" else str(quota_us)
            (base / process / file).write_text(text)

    def _limit_memory(self, process: str, limit: int) -> None:
        assert self._memory is not None
        base, file = self._memory
        with_swap = base / process / "memory.memsw.limit_in_bytes"
        with suppress(OSError):
            (base / process / "memory.oom.group").write_text("1")
        # In version 1 the limit of memory with swap is never below that of memory: it grows first and shrinks last.
        with suppress(OSError):  # without swap accounting there is no such file; a smaller limit is refused
            with_swap.write_text(str(limit))
        (base / process / file).write_text(str(limit))
        with suppress(OSError):
            with_swap.write_text(str(limit))
        with suppress(OSError):
            (base / process / "memory.swap.max").write_text("0")

    def close(self) -> None:
        for base in self._bases:
            with suppress(OSError):
                base.rmdir()

    def _use_unified(self, candidates: Path, name: str) -> None:
        """Use version 2: its list of processes always, its controllers where they can be turned on."""
        chosen: Path | None = None
        for parent in (candidates, candidates.parent):
            if not (parent / "cgroup.procs").exists() or not _made(parent / name):
                continue
            chosen = chosen or parent / name
            for controller in ("memory", "cpu"):
                with suppress(OSError):  # a group with processes of its own refuses
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                with suppress(OSError):
                    (parent / name / "cgroup.subtree_control").write_text(f"+{controller}")
            on = _words(parent / name / "cgroup.subtree_control")
            if on:
                if chosen != parent / name:
                    chosen.rmdir()
                chosen = parent / name
                self._memory = (chosen, "memory.max") if "memory" in on else None
                self._cpu = (chosen, "cpu.max") if "cpu" in on else None
                break
        if chosen is not None:
            self._bases.append(chosen)


def join(groups: list[str]) -> None:
    """Put this process into groups.

    Raises:
        OSError: it could not join, and must not run without its limits.
    """
    for group in groups:
        Path(group, "cgroup.procs").write_text("0")


def kill(groups: list[str]) -> bool:
    """Kill every process of the groups. Returns whether any ran."""
    found = False
    for group in groups:
        pids = _words(Path(group, "cgroup.procs"))
        found = found or bool(pids)
        if pids:
            with suppress(OSError):
                Path(group, "cgroup.kill").write_text("1")
                continue
            for pid in pids:
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
    return found


def remove(groups: list[str]) -> None:
    for group in groups:
        with suppress(OSError):  # a zombie is still in it: removed with the next keeper
            Path(group).rmdir()


def was_out_of_memory(groups: list[str]) -> bool:
    """Whether the kernel killed a process of the groups at their memory limit."""
    for group in groups:
        for file in ("memory.events", "memory.oom_control"):
            words = _words(Path(group, file))
            if "oom_kill" in words and words[words.index("oom_kill") + 1] != "0":
                return True
    return False


def usage(groups: list[str]) -> tuple[float | None, int | None]:
    """CPU seconds so far and bytes of memory in use, as a kubelet counts them; None for what no group measures.

    Memory is the working set: the kernel can drop inactive pages of files at once, so they do not count.
    """
    cpu_s: float | None = None
    held: int | None = None
    for group in groups:
        spent = _field(Path(group, "cpu.stat"), "usage_usec")
        if spent is not None:
            cpu_s = spent / 1e6
        accounted = _words(Path(group, "cpuacct.usage"))
        if accounted:
            cpu_s = int(accounted[0]) / 1e9
        for file, inactive in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
            used = _words(Path(group, file))
            if used:
                held = max(0, int(used[0]) - (_field(Path(group, "memory.stat"), inactive) or 0))
    return cpu_s, held


def _field(path: Path, name: str) -> int | None:
    """A number of a file with one name and value a line."""
    words = _words(path)
    return int(words[words.index(name) + 1]) if name in words else None


def _own_groups() -> dict[str, list[Path]]:
    """The folders of this process's own groups, by controller; version 2 is the empty name."""
    own: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                own[controller] = path
    found: dict[str, list[Path]] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            if kind not in ("cgroup", "cgroup2"):
                continue
            root, point = before.split(" ")[3:5]
            for controller in [""] if kind == "cgroup2" else options.rpartition(" ")[2].split(","):
                group = own.get(controller)
                if group is not None:
                    below = os.path.relpath(group, root)
                    found.setdefault(controller, []).append(
                        Path(point) if below.startswith("..") else Path(point, below)
                    )
    return found


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
