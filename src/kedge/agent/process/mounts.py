"""Mounts of one process in a mount namespace of its own. Standard library only; runs in the child, before exec.
Volumes in memory are the one exception: the agent mounts them on the machine, because containers of a pod share them.

A mount point that the machine lacks must not be created on the machine. Its nearest existing folder is covered by a
tmpfs instead, into which every entry of that folder is bound again. For a mount point in `/` the tmpfs is the new root.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS = 0x20000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _SLAVE = 0x1, 0x2, 0x4, 0x20, 0x1000, 0x4000, 0x80000
_DETACH = 2

Bind = tuple[str, str, bool]
"""Source, mount point, and whether it is read-only."""


def are_possible() -> bool:
    """Whether this process may make a mount namespace. Tried in a child, which ends at once."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _unshare()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


def bind_all(binds: Sequence[Bind], scratch: str) -> None:
    """Enter a new mount namespace and bind each source on its mount point. `scratch` is an empty folder for a new root.

    Raises:
        OSError: a mount failed; the process must not run.
    """
    _unshare()
    for source, target, read_only in sorted(binds, key=lambda each: each[1].count("/")):
        _make_point(target, scratch, is_folder=Path(source).is_dir())
        _mount(source, target, flags=_BIND | _REC)
        if read_only:
            _mount("none", target, flags=_BIND | _REMOUNT | _RDONLY)


def mount_memory(folder: str, size_bytes: int | None) -> bool:
    """Mount an empty tmpfs on a folder of the machine. Returns whether this process may mount.

    Raises:
        OSError: it may, and the mount failed.
    """
    try:
        size = "" if size_bytes is None else f",size={size_bytes}"
        _mount("tmpfs", folder, flags=_NOSUID | _NODEV, kind="tmpfs", data=f"mode=777{size}")
    except PermissionError:
        return False
    return True


def unmount(folder: str) -> None:
    """Unmount what is mounted on a folder of the machine, even if a process still uses it.

    Raises:
        OSError: nothing is mounted there, or this process may not unmount it.
    """
    _check(_LIBC.umount2(folder.encode(), _DETACH), f"umount {folder}")


def enter(pid: int) -> None:
    """Enter the mount namespace of another process."""
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
            _check(_LIBC.setns(descriptor, _NEW_MOUNTS), "setns")
    finally:
        os.close(descriptor)


def _unshare() -> None:
    _check(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _mount("none", "/", flags=_REC | _SLAVE)  # nothing that is mounted here reaches the machine


def _make_point(target: str, scratch: str, *, is_folder: bool) -> None:
    if Path(target).exists():
        return
    above = Path(target).parent
    while not above.is_dir():
        above = above.parent
    if str(above) == "/":
        _new_root(scratch)
    else:
        held = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        names = sorted(os.listdir(above))  # noqa: PTH208
        _mount("tmpfs", str(above), kind="tmpfs", data="mode=755")
        _bind_entries(f"/proc/self/fd/{held}", names, str(above))
        os.close(held)
    point = Path(target)
    point.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        point.mkdir(exist_ok=True)
    else:
        point.touch()


def _new_root(scratch: str) -> None:
    names = sorted(os.listdir("/"))  # noqa: PTH208
    _mount("tmpfs", scratch, kind="tmpfs", data="mode=755")
    _bind_entries("/", names, scratch)
    copy = f"{scratch}{scratch}"  # the new root is bound into itself with the folder that it is in
    if os.path.ismount(copy):
        _check(_LIBC.umount2(copy.encode(), _DETACH), "umount")
    os.chdir(scratch)
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def _bind_entries(source: str, names: Sequence[str], target: str) -> None:
    for name in names:
        old, new = os.path.join(source, name), os.path.join(target, name)  # noqa: PTH118
        try:
            mode = os.lstat(old).st_mode
        except FileNotFoundError:
            continue  # removed since the folder was listed, as devices may be
        if stat.S_ISLNK(mode):
            Path(new).symlink_to(os.readlink(old))  # noqa: PTH115
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(new, 0o755)  # noqa: PTH102
        else:
            os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _mount(old, new, flags=_BIND | _REC)


def _mount(source: str, target: str, *, flags: int = 0, kind: str = "none", data: str = "") -> None:
    result = _LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
