"""A tree of control groups of version 2 with the kernel's rules, in plain folders."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

_CONTROL, _CONTROLLERS = "cgroup.subtree_control", "cgroup.controllers"


class UnifiedGroups:
    """Folders below `root`. A group has the controllers of its parent; one with processes passes none on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, controllers: str) -> None:
        self.root = root
        self.busy: set[Path] = set()
        """Groups with processes of their own."""
        self._mkdir, self._write, self._rmdir = Path.mkdir, Path.write_text, Path.rmdir
        self._mkdir(root)
        self._fill(root, controllers)
        for name, method in (("mkdir", self._make), ("write_text", self._write_file), ("rmdir", self._remove)):
            # A function, so that it is bound to the path.
            monkeypatch.setattr(Path, name, lambda path, *args, _do=method, **more: _do(path, *args, **more))

    def _fill(self, group: Path, controllers: str) -> None:
        for name, text in (("cgroup.procs", ""), (_CONTROLLERS, controllers), (_CONTROL, "")):
            self._write(group / name, text)

    def _is_inside(self, path: Path) -> bool:
        return path != self.root and path.is_relative_to(self.root)

    def _make(self, path: Path, *args: Any, **more: Any) -> None:
        is_new = not path.exists()
        self._mkdir(path, *args, **more)
        if is_new and self._is_inside(path):
            self._fill(path, (path.parent / _CONTROL).read_text())

    def _write_file(self, path: Path, text: str, *args: Any, **more: Any) -> int:
        if path.name != _CONTROL or not self._is_inside(path):
            return self._write(path, text, *args, **more)
        group, wanted = path.parent, text.removeprefix("+")
        if wanted not in (group / _CONTROLLERS).read_text().split():
            raise FileNotFoundError(errno.ENOENT, "the group has no such controller", str(path))
        if group in self.busy and group != self.root:
            raise OSError(errno.EBUSY, "the group has processes", str(path))
        self._write(path, f"{path.read_text()} {wanted}".strip())
        for child in group.iterdir():
            if child.is_dir():
                self._write(child / _CONTROLLERS, path.read_text())
        return len(text)

    def _remove(self, path: Path) -> None:
        if self._is_inside(path):
            for file in path.iterdir():
                if not file.is_dir():
                    file.unlink()
        self._rmdir(path)
