"""The modules whose safeguards are mutated, the tests of each layer, and overlays of the source tree.

An overlay is a folder of links to the installed package, in which one module has another text. A process that has it
first on its path, and every process that it starts, runs the mutant; no file of the checkout is written.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import kedge
from kedge.errors import KedgeError

PACKAGE = Path(kedge.__file__).parent


class UnknownLayer(KedgeError):
    """There is no such layer. Give one of `LAYERS`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of the control plane."""

    folder: str
    """Its folder in the package."""
    tests: tuple[str, ...]
    """Test files and folders that are about it, as patterns under the checkout. The cheapest are first."""


def _sim(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/sim/test_{name}.py" for name in names)


LAYERS: Mapping[str, Layer] = {
    "service": Layer("server/service", ("tests/unit/service", *_sim("service_races", "admission_faults", "budgets"))),
    "runtime": Layer(
        "runtime", ("tests/unit/runtime", *_sim("queue", "lease", "watch*", "controller*", "lost_reply", "late_*"))
    ),
    "scheduler": Layer(
        "scheduler",
        ("tests/unit/scheduler", *_sim("scheduler", "gang_deadlines", "changes_before_binds", "holds*", "resize")),
    ),
    "controllers": Layer(
        "controllers",
        (
            "tests/unit/controllers",
            *_sim("workload*", "budgets", "garbage*", "last_replica", "nodes*", "rollout*", "repair*", "autoscaler"),
            *_sim("pod_failure_policy", "policy_status", "swept_names"),
        ),
    ),
    "agent": Layer(
        "agent/core",
        ("tests/unit/agent", "tests/contract/test_driver_simulated.py", *_sim("agent*", "kills", "assigned_pods")),
    ),
    "client": Layer("client/contract", ("tests/unit/client", "tests/contract/test_clients.py")),
}


def layer_named(name: str) -> Layer:
    if name not in LAYERS:
        raise UnknownLayer(f"there is no layer {name!r}: give one of {', '.join(LAYERS)}")
    return LAYERS[name]


def modules_of(layer: str) -> Iterator[Path]:
    """The modules of a layer, as paths in the package."""
    for path in sorted((PACKAGE / layer_named(layer).folder).rglob("*.py")):
        yield path.relative_to(PACKAGE)


def module_name(path: Path) -> str:
    return ".".join((kedge.__name__, *path.with_suffix("").parts)).removesuffix(".__init__")


def source_hash() -> str:
    """A hash of every module of the package: worlds execute other lines when any of them changes."""
    return _hash_of(PACKAGE)


def tests_hash(root: Path) -> str:
    """A hash of every test of a checkout."""
    return _hash_of(root / "tests")


def _hash_of(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def checkout() -> Path | None:
    """The checkout that the package runs from; None if there is none, or no pytest to run its tests."""
    root = PACKAGE.parent.parent
    return root if (root / "tests" / "unit").is_dir() and find_spec("pytest") is not None else None


def test_files(layer: str, module: str, root: Path) -> list[str]:
    """The test files of a layer; files that import the module or have its name come first."""
    files: dict[Path, None] = {}
    for pattern in layer_named(layer).tests:
        for place in sorted(root.glob(pattern)):
            files |= dict.fromkeys(sorted(place.rglob("test_*.py")) if place.is_dir() else [place])
    stem = module.rpartition(".")[2].removesuffix("s")

    def distance(path: Path) -> tuple[bool, bool, int]:
        text = path.read_text()
        return module not in text, stem not in path.stem, -text.count(stem)

    return [str(path.relative_to(root)) for path in sorted(files, key=distance)]


@contextmanager
def overlay(texts: Mapping[Path, str]) -> Iterator[Path]:
    """A folder that has the package with other texts of some modules. It is removed when the context ends."""
    with tempfile.TemporaryDirectory(prefix="kedge-overlay-") as folder:
        root = Path(folder)
        _link(PACKAGE, root / PACKAGE.name, {path.parts: text for path, text in texts.items()})
        yield root


def _link(source: Path, target: Path, texts: Mapping[tuple[str, ...], str]) -> None:
    """Link a folder, or its entries if any has another text."""
    if not texts:
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in source.iterdir():
        inside = {parts[1:]: text for parts, text in texts.items() if parts[0] == entry.name}
        if entry.name == "__pycache__":
            continue  # the compiled form of a replaced module must not be used, nor written
        if () in inside:
            (target / entry.name).write_text(inside[()])
        else:
            _link(entry, target / entry.name, inside)


def environment(root: Path) -> dict[str, str]:
    """The environment of a process that runs the package of an overlay."""
    before = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(root), before))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def hashed(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
