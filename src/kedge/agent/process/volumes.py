"""Volumes of a pod as folders and files of this machine, and the mounts that a container needs.

`mounts` binds them in the namespace of the process. Where the machine allows none, the variable `KEDGE_VOLUME_NAME` has
the path of each volume; it is set in both cases. A volume in memory is a tmpfs in the pod's folder, until the pod is
removed or its node is shut down.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from kedge.agent.core.driver import (
    CannotStart,
    ContainerMount,
    ContainerSetup,
    EmptyVolume,
    FileVolume,
    HostVolume,
    PodVolume,
)
from kedge.agent.process import mounts

_WAITING = "CreateContainerConfigError"
_CURRENT, _VERSION, _PARTIAL = "..data", "..version-", "..partial-"
"""Names that no file of a volume can have: a path with `..` is refused."""
_HOST_TYPES = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def make_volumes(pod_folder: Path, setup: ContainerSetup) -> tuple[list[tuple[str, str, bool]], dict[str, str]]:
    """Make the volumes that a container mounts. Returns its binds, and the variables with the paths.

    Raises:
        CannotStart: a path of the machine is not as declared, or a `subPath` is missing.
    """
    binds, variables = [], {}
    for mount in setup.mounts:
        try:
            source = _make(pod_folder / "volumes", mount.volume)
            variables["KEDGE_VOLUME_" + mount.volume.name.upper().replace("-", "_")] = str(source)
            binds.append((str(_sub_path(source, mount)), mount.path, mount.read_only))
        except OSError as error:
            raise CannotStart(f"volume {mount.volume.name} cannot be made: {error}", _WAITING) from error
    return binds, variables


def _make(folder: Path, volume: PodVolume) -> Path:
    path = folder / volume.name
    match volume:
        case EmptyVolume():
            path.mkdir(parents=True, exist_ok=True)
            if volume.in_memory and not path.is_mount():
                mounts.mount_memory(str(path), volume.size_bytes)  # where it may not mount, a folder on disk
            path.chmod(0o777)
        case FileVolume():
            _write_files(path, volume)
        case HostVolume():
            path = Path(volume.path)
            _check_host(path, volume)
    return path


def update_files(pod_folder: Path, setup: ContainerSetup) -> None:
    """Bring the files of a container's volumes up to date. An error leaves those that it had."""
    for mount in setup.mounts:
        if isinstance(mount.volume, FileVolume):
            with suppress(OSError):
                _write_files(pod_folder / "volumes" / mount.volume.name, mount.volume)


def _write_files(folder: Path, volume: FileVolume) -> None:
    """Make the folder have these files, all at once, as a kubelet does.

    The files are in a folder of their own, to which the link `..data` leads; a name in the volume is a link through it.
    So one rename replaces every file, and a program never sees half of a change.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not _has(folder, volume):
        number = max((int(each.name[len(_VERSION) :]) for each in folder.glob(f"{_VERSION}*")), default=0) + 1
        version = folder / f"{_VERSION}{number}"
        for file in volume.files:
            path = version / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
                opened.write(file.data)
                os.fchmod(opened.fileno(), file.mode & 0o777)
        version.mkdir(exist_ok=True)
        _link(folder / _CURRENT, version.name)
    names = {each.path.partition("/")[0] for each in volume.files}
    for name in names:
        if not (folder / name).is_symlink():
            _remove(folder / name)  # of an earlier kedge, which wrote the files themselves
            _link(folder / name, f"{_CURRENT}/{name}")
    current = (folder / _CURRENT).readlink().name
    for each in list(folder.iterdir()):
        if each.name not in (*names, _CURRENT, current):
            _remove(each)


def _has(folder: Path, volume: FileVolume) -> bool:
    """Whether the current version has exactly these files."""
    current = folder / _CURRENT
    if not current.is_dir():
        return False
    found = {str(each.relative_to(current)): each for each in current.rglob("*") if not each.is_dir()}
    wanted = {each.path: each for each in volume.files}
    return found.keys() == wanted.keys() and all(
        stat.S_IMODE(path.stat().st_mode) == wanted[name].mode & 0o777 and path.read_bytes() == wanted[name].data
        for name, path in found.items()
    )


def _link(path: Path, target: str) -> None:
    """Make a link, or replace one in a single step."""
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _check_host(path: Path, volume: HostVolume) -> None:
    if volume.type == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif volume.type == "FileOrCreate":
        path.touch(exist_ok=True)
    elif not path.exists():
        raise CannotStart(f"volume {volume.name}: {path} does not exist on this machine: create it", _WAITING)
    wanted = volume.type.removesuffix("OrCreate")
    if wanted and wanted in _HOST_TYPES and not _HOST_TYPES[wanted](path.stat().st_mode):
        raise CannotStart(f"volume {volume.name}: {path} is not a {wanted}", _WAITING)


def _sub_path(source: Path, mount: ContainerMount) -> Path:
    if not mount.sub_path:
        return source
    path = source / mount.sub_path
    if not path.exists():
        if isinstance(mount.volume, FileVolume):
            raise CannotStart(f"subPath {mount.sub_path} is not in volume {mount.volume.name}: add it", _WAITING)
        path.mkdir(parents=True)
    if not path.resolve().is_relative_to(source.resolve()):  # a link that a program of the pod has made
        raise CannotStart(f"subPath {mount.sub_path} leaves volume {mount.volume.name}", _WAITING)
    return path


def unmount_volumes(pods: Path) -> None:
    """Unmount the volumes in memory of every pod of a node. Their content is gone, as after a reboot."""
    for folder in pods.glob("*"):
        _unmount_volumes(folder)


def _unmount_volumes(pod_folder: Path) -> None:
    for each in (pod_folder / "volumes").glob("*"):
        if not each.is_symlink() and each.is_mount():
            mounts.unmount(str(each))


def remove_folder(folder: Path) -> None:
    """Remove a pod's folder. Its name goes first, so that half of a folder is never taken for a pod."""
    going = folder.with_name(f".removed-{folder.name}")
    for each in (folder, going):
        with suppress(OSError):  # what stays mounted is removed with the next pod of the name
            _unmount_volumes(each)
    shutil.rmtree(going, ignore_errors=True)  # an earlier removal was interrupted
    with suppress(FileNotFoundError):
        folder.rename(going)
    shutil.rmtree(going, ignore_errors=True)
