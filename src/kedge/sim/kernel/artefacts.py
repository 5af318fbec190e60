"""Artefact: one run in a kept file, with everything that is needed to run it again and to read what happened.

`hunt`, the pytest plugin and `kedge scenario run --out` write artefacts; `replay` reads them. The kernel's sections are
`run`, `tape`, `trace` and `attachment`; the program adds others, which the kernel passes through.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from kedge.kept import SUFFIX, BadKeptFile, Gap, Section, read_kept, write_kept
from kedge.sim.kernel.choices import STREAMS, Choice, Tape
from kedge.sim.kernel.shrink import FailureCondition
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.violations import Violation

RUN: Final = "run"
TAPE: Final = "tape"
TRACE: Final = "trace"
ATTACHMENT: Final = "attachment"
CODEC_VERSION: Final = 1
"""The version of the sections above."""


class BadArtefact(BadKeptFile):
    """The file has no run that this build can replay. The message has the reason."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The section `run`, as JSON: a person can read it with any tool."""

    target: str
    seed: int
    hash: str
    build: str
    violation: Violation | None
    versions: dict[str, str] = {}
    flags: dict[str, str] = {}
    conditions: tuple[FailureCondition, ...] = ()
    marks: dict[str, int] = {}
    faults: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One run, ready to be written or replayed."""

    target: str
    """How to find the program; empty for a scenario, whose file is in a section of its own."""
    seed: int
    tape: Tape
    trace: Trace
    hash: str
    violation: Violation | None
    """None for a run that passed."""
    build: str
    """A fingerprint of the code that was run: kedge, the target's file and the interpreter."""
    versions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    """Schedule policy, fault plan and bounds of the run, as text."""
    conditions: tuple[FailureCondition, ...] = ()
    attachments: dict[str, Any] = field(default_factory=dict)
    """JSON values that the program attached."""
    marks: dict[str, int] = field(default_factory=dict)
    faults: tuple[Event, ...] = ()
    sections: tuple[Section, ...] = ()
    """Sections that the program added: objects, commits, decisions, received logs."""
    gaps: tuple[Gap, ...] = ()
    """Parts of the file that could not be read. The run itself was not in them."""

    @property
    def name(self) -> str:
        """A file name that is the same for the same failure."""
        broken = self.violation.invariant if self.violation is not None else "passed"
        letters = "".join(letter if letter.isalnum() else "-" for letter in broken.lower())
        return f"{letters[:48].strip('-')}-{self.hash[:8]}{SUFFIX}"


def make_artefact(
    target: SimulationTarget, outcome: RunOutcome, conditions: tuple[FailureCondition, ...] = ()
) -> Artefact:
    """Everything about a run. It is run once more to collect the program's sections, unless the outcome has them."""
    if not outcome.kept:
        again = target.run(outcome.tape, keep=True)
        if again.hash == outcome.hash:
            outcome = again
    return Artefact(
        target=target.reference,
        seed=outcome.seed,
        tape=outcome.tape,
        trace=outcome.trace,
        hash=outcome.hash,
        violation=outcome.violation,
        build=fingerprint(target),
        versions=versions(),
        flags={"policy": outcome.tape.policy, "faults": repr(target.faults), "bounds": repr(target.bounds)},
        conditions=conditions,
        attachments=outcome.attachments,
        marks=outcome.marks,
        faults=outcome.faults,
        sections=outcome.sections,
    )


def versions() -> dict[str, str]:
    try:
        ours = version("kedge")
    except PackageNotFoundError:
        ours = "unknown"
    return {"kedge": ours, "python": platform.python_version(), "implementation": platform.python_implementation()}


def fingerprint(target: SimulationTarget) -> str:
    """A hash of everything that a replay must share with the run for its tape to fit."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(platform.python_version().encode())
    package = Path(__file__).parents[2]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    module = sys.modules.get(getattr(target.program, "__module__", ""))
    file = getattr(module, "__file__", None)
    for source in (*(() if file is None else (Path(file),)), *target.sources):
        if source.exists():
            digest.update(source.read_bytes())
    return digest.hexdigest()


# -- files -----------------------------------------------------------------------------------------


def write_artefact(artefact: Artefact, directory: Path) -> Path:
    """Write it under its own name. The same failure found again overwrites itself.

    Raises:
        BadKeptFile: it cannot be written there.
    """
    path = directory / artefact.name
    write_kept(path, sections_of(artefact))
    return path


def sections_of(artefact: Artefact) -> Iterator[Section]:
    """The sections of its file."""
    summary = RunSummary(
        target=artefact.target,
        seed=artefact.seed,
        hash=artefact.hash,
        build=artefact.build,
        violation=artefact.violation,
        versions=artefact.versions,
        flags=artefact.flags,
        conditions=artefact.conditions,
        marks=artefact.marks,
        faults=artefact.faults,
    )
    yield Section(RUN, CODEC_VERSION, msgspec.json.encode(summary))
    yield Section(TAPE, CODEC_VERSION, pack_tape(artefact.tape))
    yield Section(TRACE, CODEC_VERSION, pack_trace(artefact.trace))
    for name, value in artefact.attachments.items():
        yield Section(ATTACHMENT, CODEC_VERSION, msgspec.json.encode((name, value)))
    yield from artefact.sections


def read_artefact(path: Path) -> Artefact:
    """Read a file that `write_artefact` wrote. Damage outside the run, tape and trace is in `gaps`.

    Raises:
        BadKeptFile: it is not a kept file, or of another version.
        BadArtefact: it has no run that can be replayed.
    """
    own: dict[str, bytes] = {}
    attachments: dict[str, Any] = {}
    others: list[Section] = []
    gaps: list[Gap] = []
    try:
        for each in read_kept(path):
            if isinstance(each, Gap):
                gaps.append(each)
            elif each.name not in (RUN, TAPE, TRACE, ATTACHMENT):
                others.append(each)
            elif each.version != CODEC_VERSION:
                raise BadArtefact(
                    f"{path}: section {each.name!r} has codec version {each.version}; this build reads"
                    f" {CODEC_VERSION}: use a matching kedge"
                )
            elif each.name == ATTACHMENT:
                name, value = msgspec.json.decode(each.body, type=tuple[str, Any])
                attachments[name] = value
            else:
                own[each.name] = each.body
        _check_complete(path, own, gaps)
        summary = msgspec.json.decode(own[RUN], type=RunSummary)
        tape, trace = unpack_tape(own[TAPE]), unpack_trace(own[TRACE])
    except (msgspec.MsgspecError, ValueError, RecursionError, zlib.error) as error:
        raise BadArtefact(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return Artefact(
        target=summary.target,
        seed=summary.seed,
        tape=tape,
        trace=trace,
        hash=summary.hash,
        violation=summary.violation,
        build=summary.build,
        versions=summary.versions,
        flags=summary.flags,
        conditions=summary.conditions,
        attachments=attachments,
        marks=summary.marks,
        faults=summary.faults,
        sections=tuple(others),
        gaps=tuple(gaps),
    )


def _check_complete(path: Path, own: dict[str, bytes], gaps: list[Gap]) -> None:
    missing = [name for name in (RUN, TAPE, TRACE) if name not in own]
    if not missing:
        return
    names = ", ".join(map(repr, missing))
    if gaps:
        raise BadArtefact(f"{path} is damaged or cut short: sections {names} are missing; {gaps[0]}")
    raise BadArtefact(f"{path} has no run to replay (no {names}): give a file of `kedge hunt` or `kedge scenario`")


# -- tape and trace as bytes -----------------------------------------------------------------------

_PackedTape = tuple[int, str, bytes, dict[str, list[Choice]]]
_PackedTrace = tuple[bytes, bytes, list[Event]]


def pack_tape(tape: Tape) -> bytes:
    parts = (tape.seed, tape.policy, tape.schedule.tobytes(), {name: tape.streams[name] for name in STREAMS})
    return zlib.compress(msgspec.msgpack.encode(parts), 9)


def unpack_tape(packed: bytes) -> Tape:
    seed, policy, schedule, streams = msgspec.msgpack.decode(zlib.decompress(packed), type=_PackedTape)
    return Tape(seed, policy, _numbers("I", schedule), {name: streams[name] for name in STREAMS})


def pack_trace(trace: Trace) -> bytes:
    return zlib.compress(msgspec.msgpack.encode((trace.steps.tobytes(), trace.times.tobytes(), trace.events)), 9)


def unpack_trace(packed: bytes) -> Trace:
    trace = Trace()
    steps, times, trace.events = msgspec.msgpack.decode(zlib.decompress(packed), type=_PackedTrace)
    trace.steps, trace.times = _numbers("I", steps), _numbers("d", times)
    return trace


def _numbers(code: str, data: bytes) -> array[Any]:
    numbers = array(code)
    numbers.frombytes(data)
    return numbers
