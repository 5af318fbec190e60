"""Every type of condition that kedge writes has a claim in the simulator, or a reason why none can be judged."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from kedge.api.holds import HELD
from kedge.controllers.job.plan import COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_TARGET
from kedge.controllers.namespace.status import CONTENT, FINALIZERS
from kedge.sim.judges.condition_invariants import CLAIMS, UNJUDGED

SOURCE = Path(importlib.import_module("kedge").__file__ or "").parent
LOCAL = {
    ("controllers/job/status.py", "kind"): (SUCCESS_TARGET, FAILURE_TARGET),
    ("controllers/job/status.py", "final"): (COMPLETE, FAILED),
    ("controllers/namespace/status.py", "type_"): (CONTENT, FINALIZERS),
    ("controllers/shared/replicas.py", "type_"): ("Ready", "ContainersReady"),
    ("server/service/credentials/signing_requests.py", "type_"): ("Approved", "Failed"),
    ("agent/core/node.py", "each.type"): ("ResourceLimits", "VolumeMounts"),
}
"""Types that a variable has: by file and expression."""


def type_expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """The types of calls of `condition(type, status=...)`, and of literal conditions."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "condition":
            if any(keyword.arg == "status" for keyword in each.keywords):
                yield each.args[0]
        elif isinstance(each, ast.Dict):
            fields = {
                key.value: value
                for key, value in zip(each.keys, each.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            if {"type", "status"} <= fields.keys() and ({"reason", "observedGeneration"} & fields.keys()):
                yield fields["type"]


def written_types() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith("sim/") or name == "api/conditions.py":
            continue
        for each in type_expressions(ast.parse(path.read_text())):
            if isinstance(each, ast.Constant):
                yield name, str(each.value)
            elif isinstance(each, ast.JoinedStr):  # a prefix, and a name
                first = each.values[0]
                assert isinstance(first, ast.FormattedValue), f"{name}: {ast.unparse(each)}"
                yield name, value_of(name, first.value)
            elif (name, ast.unparse(each)) in LOCAL:
                yield from ((name, type_) for type_ in LOCAL[name, ast.unparse(each)])
            else:
                yield name, value_of(name, each)


def value_of(name: str, expression: ast.expr) -> str:
    module = importlib.import_module("kedge." + name.removesuffix(".py").replace("/", "."))
    text = ast.unparse(expression)
    found = getattr(module, text, None)
    assert isinstance(found, str), f"{name} writes a condition of the type {text}: add its values to LOCAL"
    return found


def test_every_condition_that_is_written_has_a_claim_or_a_reason() -> None:
    judged = {type_ for _, type_ in (*CLAIMS, *UNJUDGED)} | {HELD}
    found = list(written_types())
    assert len({type_ for _, type_ in found}) > 25
    missing = sorted({f"{type_} ({name})" for name, type_ in found if type_ not in judged})
    assert not missing, f"add a claim to CLAIMS, or a reason to UNJUDGED: {', '.join(missing)}"


def test_a_reason_why_none_can_be_judged_is_needed() -> None:
    """A condition with a claim of its true status has no reason beside it."""
    assert not [place for place in UNJUDGED if (claims := CLAIMS.get(place)) is not None and claims.true is not None]
    assert all(claims.true is not None or place in UNJUDGED for place, claims in CLAIMS.items())
