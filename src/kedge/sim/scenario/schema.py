"""The schema of scenario files: world, steps, expectations and weak variants, read and checked.

`read_scenario` returns the whole scenario or raises with the location of the error. `runner` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kedge.api.kinds import KINDS
from kedge.errors import KedgeError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.sim.cluster.admission import PolicyPlan
from kedge.sim.cluster.dump import BadDump, read_dump
from kedge.sim.judges.registry import Rule
from kedge.sim.kernel.targets import UnknownTarget, find_object
from kedge.sim.scenario import fault_steps, machine_steps, view_step
from kedge.sim.scenario.components import CONTROLLERS, controller_maker, is_reference
from kedge.sim.scenario.document import (
    Fields,
    ScenarioError,
    SourceLocation,
    YamlNode,
    flag,
    items,
    mapping,
    number,
    parse,
    plain_mapping,
    seconds,
    suggest,
    text,
    texts,
)
from kedge.sim.scenario.predicates import NeverPredicate, Predicate, key_named, parse_predicate, read_predicate
from kedge.sim.scenario.recorded_draws import RecordedDraw
from kedge.sim.scenario.safeguards import find_safeguard, safeguards
from kedge.sim.scenario.steps import VERBS, Verb, policies_named
from kedge.sim.standard import LIMITS

SETTLE_S = 900.0
DECLARING = (fault_steps, machine_steps, view_step)
"""The modules beside `steps` that declare verbs: importing them fills `VERBS`."""


@dataclass(frozen=True, slots=True)
class ScenarioNode:
    name: str
    zone: str
    resources: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class ScenarioDump:
    """The dump of a real cluster, and the location of its name in the scenario."""

    objects: tuple[Mapping[str, Any], ...]
    name: str
    where: SourceLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioWorld:
    """The cluster at the beginning of a scenario."""

    servers: int
    nodes: tuple[ScenarioNode, ...]
    schedulers: Mapping[str, int]
    """Copies by scheduler name: copies of one name elect a leader."""
    controllers: tuple[str, ...]
    managers: int
    limits: Limits
    namespaces: tuple[str, ...]
    objects: tuple[Mapping[str, Any], ...]
    admission: tuple[PolicyPlan, ...]
    dump: ScenarioDump | None
    """Objects of a real cluster, loaded before all others."""
    draws: tuple[RecordedDraw, ...] = ()
    """How ties between nodes are broken; at random for other pods."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A moment: a time since the nodes were ready, and the first commit after it at which a predicate holds."""

    at_s: float = 0.0
    when: Predicate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A predicate that must come true in time, or hold at every commit."""

    name: str
    predicate: Predicate
    within_s: float | None
    """None: it must hold at every commit."""
    begins: Begin
    """From when on an expectation must hold at every commit."""
    until: Predicate | None
    """The expectation ends with the first commit at which this holds."""
    hunted: bool
    """Whether a hunt judges it, whose faults the file does not know."""
    line: int
    """Its line in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStep:
    """One action or expectation, and the moment it waits for."""

    at_s: float | None
    after_s: float
    when: Predicate | None
    when_within_s: float
    verb: Verb | None
    args: Mapping[str, Any]
    expectation: Expectation | None
    summary: str
    line: int
    """Its line in the file."""


@dataclass(frozen=True, slots=True)
class WeakVariant:
    """A variant that must fail, and the rule it must break."""

    name: str
    breaks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A parsed scenario file."""

    name: str
    lesson: str
    story: str
    seed: int
    world: ScenarioWorld
    steps: tuple[ScenarioStep, ...]
    meanwhile: tuple[ScenarioStep, ...]
    """Steps beside the others, each at its own time. One that cannot be done is left out."""
    expect: tuple[Expectation, ...]
    weak: tuple[WeakVariant, ...]
    invariants: tuple[str, ...]
    """Invariants beside those of kedge, as `module:function`."""
    names: Mapping[str, Key]
    """By name in the story: the pattern of the object that it stands for."""
    settle_s: float
    """0: the run does not wait for convergence at its end."""
    source: str
    """The text of the file."""

    @property
    def weak_variant(self) -> WeakVariant:
        """The first weak variant.

        Raises:
            ScenarioError: the file has none.
        """
        if not self.weak:
            raise ScenarioError(f"{self.name} has no weak variant: name a safeguard with --without")
        return self.weak[0]


def read_scenario(path: Path) -> Scenario:
    """Read a file.

    Raises:
        ScenarioError: there is no such file, or it is invalid; the message has file, line and column.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"{path}: cannot be read ({error}): give a file, or a name of `kedge scenario list`"
        ) from error
    return parse_scenario(content, str(path))


def parse_scenario(content: str, file: str = "scenario.yaml") -> Scenario:
    whole = Fields(parse(content, file), "a scenario")
    found = Scenario(
        name=whole.need("scenario", text),
        lesson=whole.take("lesson", text, ""),
        story=whole.need("story", text).strip(),
        seed=whole.take("seed", number, 0),
        world=whole.need("world", _world),
        steps=whole.need("steps", lambda part: tuple(_step(each) for each in items(part))),
        meanwhile=whole.take("meanwhile", lambda part: tuple(_timed_step(each) for each in items(part)), ()),
        expect=whole.take("expect", lambda part: tuple(_expectation(each) for each in items(part)), ()),
        weak=whole.take("weak", lambda part: tuple(_weak_variant(each) for each in items(part)), ()),
        invariants=whole.take("invariants", lambda part: tuple(_invariant(each) for each in items(part)), ()),
        names=whole.take("names", _names, {}),
        settle_s=whole.take("settles within", seconds, SETTLE_S),
        source=content,
    )
    whole.done()
    return found


def _names(part: YamlNode) -> Mapping[str, Key]:
    mapping(part)
    return {name: key_named(each) for name, each in part.value.items()}


# -- world -----------------------------------------------------------------------------------------


def _world(part: YamlNode) -> ScenarioWorld:
    world = Fields(part, "`world`")
    found = ScenarioWorld(
        servers=world.take("servers", _positive, 1),
        dump=world.take("dump", _dump, None) if "dump" in world else None,
        nodes=world.take("nodes", lambda part: tuple(_node(each) for each in items(part)), ()),
        schedulers=world.take("schedulers", _schedulers, {"default-scheduler": 1}),
        controllers=world.take("controllers", _controllers, ()),
        managers=world.take("managers", _positive, 1),
        limits=world.take("limits", _limits, LIMITS),
        namespaces=world.take("namespaces", texts, ()),
        objects=world.take("objects", lambda part: tuple(manifest(each) for each in items(part)), ()),
        admission=world.take("admission", policies_named, ()),
        draws=world.take("draws", lambda part: tuple(_draw(each) for each in items(part)), ()),
    )
    world.done()
    if not found.nodes and found.dump is None:
        part.fail("`world` lacks `nodes`: add some, or a `dump` with nodes")
    return found


def _dump(part: YamlNode) -> ScenarioDump | None:
    """The objects of a kubectl dump; its path is relative to the scenario file."""
    path = Path(part.where.file).parent / text(part)
    try:
        return ScenarioDump(tuple(read_dump(path)), text(part), part.where)
    except OSError as error:
        part.fail(f"the dump cannot be read ({error}): write it with kubectl get nodes,pods,deployments -A -o json")
    except BadDump as error:
        part.fail(str(error))


def _positive(part: YamlNode) -> int:
    if number(part) == 0:
        part.fail("expected at least 1, got 0")
    return number(part)


def _node(part: YamlNode) -> ScenarioNode:
    node = Fields(part, "a node")
    name, zone = node.need("name", text), node.take("zone", text, "zone-a")
    given, labels = plain_mapping(node, "resources"), plain_mapping(node, "labels")
    taints = node.need("taints", items) if "taints" in node else []
    node.done()
    resources = {resource: str(amount) for resource, amount in given.items()}
    return ScenarioNode(name, zone, resources, labels, tuple(mapping(each) for each in taints))


def _draw(part: YamlNode) -> RecordedDraw:
    draw = Fields(part, "a draw")
    found = RecordedDraw(draw.need("pod", key_named), draw.need("at", seconds), draw.need("draw", number))
    draw.done()
    return found


def _schedulers(part: YamlNode) -> Mapping[str, int]:
    mapping(part)
    return {name: _positive(each) for name, each in part.value.items()}


def _controllers(part: YamlNode) -> tuple[str, ...]:
    for each in items(part):
        if is_reference(text(each)):
            _named(each, controller_maker)
        elif text(each) not in CONTROLLERS:
            each.fail(f"there is no controller `{each.value}`{suggest(each.value, CONTROLLERS)}")
    return texts(part)


def _invariant(part: YamlNode) -> str:
    """`module:function`, or `file.py:function`: a function of one commit that yields what it breaks."""
    _named(part, find_invariant)
    return text(part)


def _named(part: YamlNode, find: Callable[[str], object]) -> None:
    try:
        find(text(part))
    except UnknownTarget as error:
        part.fail(str(error))


def find_invariant(reference: str) -> Rule:
    """The function that `module:function` names.

    Raises:
        UnknownTarget: there is none.
    """
    rule: Rule = find_object(reference, "an invariant", "a function of one commit that yields (cause, message)")
    return rule


def _limits(part: YamlNode) -> Limits:
    known = {each.name: each for each in fields(Limits)}
    given = mapping(part)
    for name, each in part.value.items():
        where = (part.keys or {})[name]
        if name not in known:
            where.fail(f"there is no limit `{name}`{suggest(name, known)}")
        if isinstance(each.value, bool) or not isinstance(each.value, int | float):
            each.fail(f"`{name}` must be a number, not {each.value!r}")
    try:
        return replace(LIMITS, **given)
    except (KedgeError, ValueError, TypeError) as error:
        part.fail(str(error))


def manifest(part: YamlNode) -> dict[str, Any]:
    """A manifest as for `kubectl apply`; admission checks its fields when it is applied."""
    body = mapping(part)
    for name in ("apiVersion", "kind"):
        if not isinstance(body.get(name), str):
            part.fail(f"an object lacks `{name}`: write a manifest as for `kubectl apply`")
    if not isinstance(body.get("metadata"), dict) or not body["metadata"].get("name"):
        part.fail("an object lacks `metadata.name`: add it")
    try:
        KINDS.of_api(body["apiVersion"], body["kind"])
    except KedgeError as error:
        part.value["kind"].fail(f"{error}: correct `apiVersion` or `kind`")
    return body


# -- steps and expectations ------------------------------------------------------------------------


def _step(part: YamlNode) -> ScenarioStep:
    step = Fields(part, "a step")
    at_s = step.take("at", seconds, -1.0)
    after_s = step.take("after", seconds, 0.0)
    when = step.take("when", parse_predicate, None) if "when" in step else None
    when_within_s = step.take("waiting at most", seconds, 120.0)
    if at_s >= 0 and (when is not None or after_s):
        part.fail("a step has either `at`, or `when` and `after`: remove one")
    verbs = [name for name in step.names() if name in VERBS or name == "expect"]
    if len(verbs) != 1:
        others = step.names()
        hint = suggest(others[0], [*VERBS, "expect"]) if others and not verbs else f": it has {len(verbs)} of them"
        part.fail(f"a step has exactly one verb{hint}")
    name = verbs[0]
    verb: Verb | None = None
    expectation: Expectation | None = None
    args: Mapping[str, Any] = {}
    if name == "expect":
        expectation = step.need("expect", _expectation)
        summary = f"expect {expectation.name}"
    else:
        verb = VERBS[name]
        args = step.need(name, verb.read)
        summary = verb.summary(args)
    step.done(also=["when", *VERBS, "expect"])
    return ScenarioStep(
        at_s=at_s if at_s >= 0 else None,
        after_s=after_s,
        when=when,
        when_within_s=when_within_s,
        verb=verb,
        args=args,
        expectation=expectation,
        summary=summary,
        line=part.where.line,
    )


def _timed_step(part: YamlNode) -> ScenarioStep:
    step = _step(part)
    if step.at_s is None or step.expectation is not None:
        part.fail("a step in `meanwhile` has `at` and a verb other than `expect`: add `at`, or move it to `steps`")
    return step


def _expectation(part: YamlNode) -> Expectation:
    fields = Fields(part, "an expectation")
    predicate = read_predicate(fields)
    name = fields.take("name", text, "")
    never = fields.take("never", flag, False)  # noqa: FBT003
    if never:
        predicate = NeverPredicate(predicate)
    name = name or predicate.summary
    always = fields.take("always", flag, False) or never  # noqa: FBT003
    within_s = fields.take("within", seconds, -1.0)
    begins = fields.take("from", _begin, None)
    until = fields.take("until", parse_predicate, None) if "until" in fields else None
    hunted = fields.take("hunt", flag, True)  # noqa: FBT003
    fields.done()
    if always == (within_s >= 0):
        part.fail("an expectation has one of `within: 60s`, `always: true` and `never: true`: keep one")
    for name_of, given in (("from", begins), ("until", until)):
        if given is not None and not always:
            part.fail(f"`{name_of}` belongs to `always: true` and `never: true`: remove it, or add either")
    return Expectation(
        name=name,
        predicate=predicate,
        within_s=None if always else within_s,
        begins=begins or Begin(),
        until=until,
        hunted=hunted,
        line=part.where.line,
    )


def _begin(part: YamlNode) -> Begin | None:
    """`30s`, or a predicate."""
    return Begin(when=parse_predicate(part)) if isinstance(part.value, dict) else Begin(at_s=seconds(part))


def _weak_variant(part: YamlNode) -> WeakVariant:
    fields = Fields(part, "a weak variant")
    name = fields.need("without", _weakness_name)
    breaks = fields.need("breaks", text)
    fields.done()
    return WeakVariant(name, breaks)


def _weakness_name(part: YamlNode) -> str:
    if find_safeguard(text(part)) is None:
        part.fail(f"there is no safeguard `{part.value}` to remove{suggest(part.value, safeguards())}")
    return text(part)
