"""The table of Events in the docs has every Event that the code writes: by component, reason and type, and no other."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kedge.agent.core.plan import DEADLINE_EXCEEDED, NODE_REPLACED
from kedge.api.event_bodies import NORMAL, WARNING
from kedge.controllers import CONTROLLERS
from kedge.controllers.deployment.controller import SCALING_EVENTS
from kedge.controllers.node.controller import STATE_REASONS
from kedge.controllers.node.plan import NodeState
from kedge.controllers.rollout.controller import _TROUBLED
from kedge.controllers.rollout.plan import RolloutPhase
from kedge.controllers.shared.actions import POD_EVENTS

SOURCE = Path(importlib.import_module("kedge").__file__ or "").parent
PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
WORKLOADS = {"deployment": SCALING_EVENTS, "replicaset": POD_EVENTS, "job": POD_EVENTS}
"""Packages whose acts are Events, by act: `ActionRecorder` writes them."""
WRITERS = ("runtime/", "sim/", "api/", "controllers/shared/actions.py")
"""Files that write Events of others."""


class WrittenEvent(NamedTuple):
    package: str
    reason: str
    type: str


def literals(file: str, call: str, place: int | str, *, where: str = "") -> list[str]:
    """The texts that calls of a function have as an argument, if `where` is in the source of the call."""
    found = []
    for each in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(each, ast.Call) and ast.unparse(each.func).endswith(call) and where in ast.unparse(each):
            named = {keyword.arg: keyword.value for keyword in each.keywords}
            value = named.get(place) if isinstance(place, str) else each.args[place]
            if isinstance(value, ast.Constant):
                found.append(str(value.value))
    return found


def types(reasons: Iterable[str], type_: str = WARNING) -> list[tuple[str, str]]:
    return [(each, type_) for each in dict.fromkeys(reasons)]


LOCAL = {
    ("controllers/node/controller.py", "STATE_REASONS[plan.state]"): [
        (reason, NORMAL if state is NodeState.READY else WARNING) for state, reason in STATE_REASONS.items()
    ],
    ("controllers/rollout/controller.py", "f'Rollout{plan.phase}'"): [
        (f"Rollout{phase}", WARNING if phase in _TROUBLED else NORMAL) for phase in RolloutPhase
    ],
    ("controllers/job/controller.py", "outcome.reason"): types(
        literals("controllers/job/plan.py", "JobOutcome", 1, where="(False")
    ),
    ("controllers/autoscaler/controller.py", "problem['reason']"): types(
        literals("controllers/autoscaler/controller.py", "condition", "reason", where="status=False")
    ),
    ("controllers/namespace/controller.py", "why"): [
        ("SomeResourcesRemain", NORMAL),
        ("SomeFinalizersRemain", WARNING),
        ("ContentDeletionFailed", WARNING),
    ],
    ("agent/core/pod_acts.py", "plan.failed"): types(
        [
            NODE_REPLACED,
            DEADLINE_EXCEEDED,
            "OutOfRESOURCE",
            *literals("placement/admission.py", "_failed", 0),
        ]
    ),
    ("agent/core/pod_acts.py", "reason"): types(["FailedPostStartHook", "Unhealthy"]),
    ("scheduler/report/event_recorder.py", "reason"): [],  # the callers have it
}
"""Reasons and types that an expression has: by file and expression."""


def written_events() -> Iterator[WrittenEvent]:
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if file.startswith(WRITERS):
            continue
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Call):
                yield from written_by(file, each)
    for name, events in WORKLOADS.items():
        package, file = f"controllers/{name}", f"controllers/{name}/controller.py"
        yield from (WrittenEvent(package, reason, NORMAL) for reason, _ in events.values())
        for act in (*literals(file, "actions.run", 0), *literals(file, "actions.run_on", 0)):
            yield WrittenEvent(package, f"Failed{act.capitalize()}", WARNING)


def written_by(file: str, call: ast.Call) -> Iterator[WrittenEvent]:
    """The Events of one call of a function that writes them."""
    name = ast.unparse(call.func).rpartition(".")[2]
    named = {each.arg: each.value for each in call.keywords}
    if name == "event" and len(call.args) > 2:
        warns = named.get("warning") is not None or file.startswith("scheduler/")
        yield from by_reason(file, call.args[1], WARNING if warns else NORMAL)
    elif name == "PodEvent":
        yield from by_reason(file, call.args[0], WARNING if "warning" in named else NORMAL)
    elif name == "_write_event":
        yield from by_reason(file, call.args[1], WARNING)
    elif name == "event_body":
        yield from by_reason(file, named["reason"], WARNING)


def by_reason(file: str, expression: ast.expr, type_: str) -> Iterator[WrittenEvent]:
    package = "/".join(file.split("/")[:2]) if not file.startswith("scheduler/") else "scheduler"
    text = ast.unparse(expression)
    if (file, text) in LOCAL:
        yield from (WrittenEvent(package, *each) for each in LOCAL[file, text])
        return
    if isinstance(expression, ast.Constant):
        yield WrittenEvent(package, str(expression.value), type_)
        return
    module = importlib.import_module("kedge." + file.removesuffix(".py").replace("/", "."))
    found = getattr(module, text, None)
    assert isinstance(found, str), f"{file} writes an Event with the reason {text}: add its values to LOCAL"
    yield WrittenEvent(package, found, type_)


def package_of(component: str) -> str:
    if component in ("agent-NODE", "default-scheduler"):
        return {"agent-NODE": "agent/core", "default-scheduler": "scheduler"}[component]
    return "/".join(CONTROLLERS[component].__module__.split(".")[1:3])


def listed_events() -> Iterator[WrittenEvent]:
    """The rows of the table: component, kind of the object, reasons, type, and when."""
    section = PAGE.read_text(encoding="utf-8").partition("### Events\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        assert len(cells) == 5, line
        assert cells[4], f"it does not show when: {line}"
        for component in re.findall(r"`([^`]+)`", cells[0]):
            for reason in re.findall(r"`([^`]+)`", cells[2]):
                yield WrittenEvent(package_of(component), reason, cells[3])


def test_the_table_lists_every_event_that_the_code_writes_and_no_other() -> None:
    written, listed = set(written_events()), set(listed_events())
    assert len(written) > 60
    assert sorted(written - listed) == [], "add them to the table of Events in docs/observability.md"
    assert sorted(listed - written) == [], "no code writes these: remove them from docs/observability.md"


def test_an_event_is_listed_once() -> None:
    found = list(listed_events())
    twice = {each for each in found if found.count(each) > 1}
    # The repair controllers share a package, and two of them may write the same reason.
    assert {each for each in twice if each.package != "controllers/repair"} == set()
