"""A failure in a file: everything that is needed to run it again and to read what happened, with a format version.

`hunt` and the pytest plugin write them, `replay` reads them. The text parts are for people; tape and trace are packed.
A file that is damaged, cut short or of another kind gives a `BadArtefact` that says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.kernel.choices import STREAMS, Tape
from kedge.sim.kernel.shrink import FailureCondition
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.violations import Violation

FORMAT = "kedge simulation failure"
FORMAT_VERSION = 1


class BadArtefact(KedgeError):
    """The file is no failure that this build can read. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One failure, ready to be written or replayed."""

    target: str
    seed: int
    tape: Tape
    trace: Trace
    hash: str
    violation: Violation
    build: str
    """A fingerprint of the code that was run: kedge, the target's file and the interpreter."""
    versions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    """Schedule policy, fault plan and bounds of the run, in words."""
    conditions: tuple[FailureCondition, ...] = ()
    attachments: dict[str, Any] = field(default_factory=dict)
    """What the program attached: initial objects, policies, capacity."""
    marks: dict[str, int] = field(default_factory=dict)
    faults: tuple[Event, ...] = ()

    @property
    def name(self) -> str:
        """A file name that is the same for the same failure."""
        words = "".join(letter if letter.isalnum() else "-" for letter in self.violation.invariant.lower())
        return f"{words[:48].strip('-')}-{self.hash[:8]}.json"


def make_artefact(
    target: SimulationTarget, outcome: RunOutcome, conditions: tuple[FailureCondition, ...] = ()
) -> Artefact:
    assert outcome.violation is not None
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
    )


def versions() -> dict[str, str]:
    try:
        ours = version("kedge")
    except PackageNotFoundError:
        ours = "unknown"
    return {"kedge": ours, "python": platform.python_version(), "implementation": platform.python_implementation()}


def fingerprint(target: SimulationTarget) -> str:
    """What a replay must share with the run for its tape to mean the same."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(platform.python_version().encode())
    package = Path(__file__).parents[2]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    module = sys.modules.get(getattr(target.program, "__module__", ""))
    file = getattr(module, "__file__", None)
    if file is not None and Path(file).exists():
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


# -- files -----------------------------------------------------------------------------------------


def write_artefact(artefact: Artefact, directory: Path) -> Path:
    """Write it under its own name. The same failure found again overwrites itself."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / artefact.name
    body = _to_json(artefact)
    document = {
        "format": FORMAT,
        "formatVersion": FORMAT_VERSION,
        "checksum": _checksum(body),
        **body,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_artefact(path: Path) -> Artefact:
    """Read a file that `write_artefact` wrote.

    Raises:
        BadArtefact: it is not one, or no longer whole, or of a newer format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadArtefact(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadArtefact(f"{path} is not a simulation failure: it is not text") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        whole = text.lstrip().startswith("{")
        what = "is cut short or damaged" if whole else "is not a simulation failure"
        raise BadArtefact(f"{path} {what}: line {error.lineno}: {error.msg}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadArtefact(f"{path} is not a simulation failure: it has no format {FORMAT!r}")
    found = document.get("formatVersion")
    if found != FORMAT_VERSION:
        raise BadArtefact(f"{path} has format version {found}; this build reads {FORMAT_VERSION}: use a matching kedge")
    body = {name: value for name, value in document.items() if name not in ("format", "formatVersion", "checksum")}
    if document.get("checksum") != _checksum(body):
        raise BadArtefact(f"{path} is damaged: its checksum does not match its content")
    try:
        return _from_json(body)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise BadArtefact(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _to_json(artefact: Artefact) -> dict[str, Any]:
    violation = artefact.violation
    body = {
        "target": artefact.target,
        "invariant": {
            "words": violation.invariant,
            "message": violation.message,
            "cause": violation.cause,
            "detail": violation.detail,
            "told": violation.stable_message,
        },
        "conditions": [{"what": condition.what, "needed": condition.needed} for condition in artefact.conditions],
        "faults": [list(event) for event in artefact.faults],
        "marks": artefact.marks,
        "attachments": artefact.attachments,
        "versions": artefact.versions,
        "flags": artefact.flags,
        "build": artefact.build,
        "hash": artefact.hash,
        "trace": pack_trace(artefact.trace),
        "tape": {
            "seed": artefact.tape.seed,
            "policy": artefact.tape.policy,
            "schedule": _pack(artefact.tape.schedule),
            "streams": {name: [list(choice) for choice in artefact.tape.streams[name]] for name in STREAMS},
        },
    }
    return json.loads(json.dumps(body))  # type: ignore[no-any-return]


def _from_json(body: dict[str, Any]) -> Artefact:
    tape = body["tape"]
    streams = {
        name: [(str(label), int(bound), int(value)) for label, bound, value in tape["streams"][name]]
        for name in STREAMS
    }
    words = body["invariant"]
    return Artefact(
        target=str(body["target"]),
        seed=int(tape["seed"]),
        tape=Tape(int(tape["seed"]), str(tape["policy"]), _unpack("I", tape["schedule"]), streams),
        trace=unpack_trace(body["trace"]),
        hash=str(body["hash"]),
        violation=Violation(words["words"], words["message"], words["cause"], words["detail"], words["told"]),
        build=str(body["build"]),
        versions=dict(body["versions"]),
        flags=dict(body["flags"]),
        conditions=tuple(FailureCondition(item["what"], item["needed"]) for item in body["conditions"]),
        attachments=dict(body["attachments"]),
        marks=dict(body["marks"]),
        faults=tuple(_event(event) for event in body["faults"]),
    )


def pack_trace(trace: Trace) -> dict[str, Any]:
    """A trace as JSON: the events as they are, the rest packed."""
    return {
        "timeline": [list(event) for event in trace.events],
        "steps": _pack(trace.steps),
        "times": _pack(trace.times),
    }


def unpack_trace(packed: dict[str, Any]) -> Trace:
    """Read what `pack_trace` made."""
    trace = Trace()
    trace.steps = _unpack("I", packed["steps"])
    trace.times = _unpack("d", packed["times"])
    trace.events = [_event(event) for event in packed["timeline"]]
    return trace


def _event(parts: list[Any]) -> Event:
    step, at_s, host, kind, text = parts
    return Event(int(step), float(at_s), str(host), str(kind), str(text))


def _pack(numbers: array[Any]) -> str:
    return base64.b64encode(zlib.compress(numbers.tobytes(), 9)).decode()


def _unpack(code: str, text: str) -> array[Any]:
    numbers = array(code)
    numbers.frombytes(zlib.decompress(base64.b64decode(text, validate=True)))
    return numbers
