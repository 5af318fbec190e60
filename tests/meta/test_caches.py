"""Every cache and every dict that outlives a call is declared with its bound, so that callers cannot fill memory.

Functions use `remembered` and `weighed` of `kedge.caches`. Dicts of modules and objects are in `cache_bounds.txt`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from kedge.limits import Limits

SOURCE = Path(__file__).parents[2] / "src" / "kedge"
TABLE = Path(__file__).parent / "cache_bounds.txt"
NOT_SERVED = ("sim/", "store/conformance/", "client/conformance/")
"""Folders that no process of a cluster runs: simulations and suites live for one run."""
EMPTY = {"dict", "OrderedDict", "defaultdict", "Counter", "WeakValueDictionary", "WeakKeyDictionary"}
BOUNDS = {
    "code": "the source, the command line or the kinds of the API fill it, not requests",
    "state": "one entry for each object, node, pod or label that exists or is pending; it goes with it",
    "open": "one entry for each request, watch, connection, lease or task under way, which have limits of their own",
    "brief": "it lives for one request, reconcile, command or file",
    "given": "its bounds are arguments of its constructor",
    "limit": "entries are bounded by the named limit or constant, and bytes by the length of the keys",
}


def source() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(NOT_SERVED):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def called(node: ast.expr) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_empty_dict(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict):
        return not node.keys
    if not isinstance(node, ast.Call) or called(node.func) not in EMPTY:
        return False
    return called(node.func) == "defaultdict" or not (node.args or node.keywords)


def assignments(nodes: list[ast.stmt] | Iterator[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for node in nodes:
        if isinstance(node, ast.AnnAssign):
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value


def is_dict(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Dict | ast.DictComp) or (isinstance(node, ast.Call) and called(node.func) in EMPTY)


def own_attribute(node: ast.expr) -> str:
    """The name of an attribute of `self`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and called(node.value) == "self" else ""


def filled_in(node: ast.ClassDef) -> set[str]:
    """The attributes whose items a class sets."""
    found = set()
    for each in ast.walk(node):
        if (isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)) or (
            isinstance(each, ast.Attribute) and each.attr in ("setdefault", "update")
        ):
            found.add(own_attribute(each.value))
    return found


def dicts_of(tree: ast.Module) -> set[str]:
    """The dicts of a module and of its objects that begin empty, and those of objects that get more items later."""
    found = {called(target) for target, value in assignments(tree.body) if is_empty_dict(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            filled = filled_in(node)
            for target, value in assignments(ast.walk(node)):
                name = own_attribute(target)
                if name and (is_empty_dict(value) or (is_dict(value) and name in filled)):
                    found.add(f"{node.name}.{name}")
    return found


def declared() -> dict[str, str]:
    rows = [line.split(maxsplit=2) for line in TABLE.read_text(encoding="utf-8").splitlines() if line]
    assert len({(place, name) for place, name, _ in rows}) == len(rows), "a dict is declared twice"
    assert rows == sorted(rows), "the rows are in order"
    return {f"{place} {name}": bound for place, name, bound in rows}


def test_every_dict_that_outlives_a_call_is_declared_with_its_bound() -> None:
    found = {f"{place} {name}" for place, tree in source() for name in dicts_of(tree)}
    assert found - set(declared()) == set(), f"declare them in {TABLE.name} with one of {sorted(BOUNDS)}"
    assert set(declared()) - found == set(), f"these rows of {TABLE.name} have no dict"


def test_every_declared_bound_is_known_and_every_limit_exists() -> None:
    limits = {each.name for each in fields(Limits)}
    for name, bound in declared().items():
        kind, *named = bound.split()
        assert kind in BOUNDS, f"{name}: {kind}"
        if kind == "limit":
            text = (SOURCE / name.split()[0]).read_text(encoding="utf-8")
            assert named, f"{name} names no limit"
            assert all(each in limits or f"\n{each}" in text for each in named), f"{name}: {named}"
        else:
            assert not named, f"{name}: only a limit has a name"


def test_functions_are_cached_by_the_two_decorators_alone() -> None:
    """`functools.cache` is for functions of nothing, or of types: their number is that of the source."""
    bare, unbounded = [], []
    for place, tree in source():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute) and called(node) == "lru_cache" and place != "caches.py":
                bare.append(place)
            if isinstance(node, ast.FunctionDef) and any(called(each) == "cache" for each in node.decorator_list):
                unbounded.append(f"{place} {node.name}")
    assert not bare, "use remembered or weighed of kedge.caches"
    assert sorted(unbounded) == sorted(OF_TYPES)


OF_TYPES = [
    "api/request_text.py _members_of",  # of types of requests
    "api/types/table.py type_table",  # of nothing
    "api/validation/__init__.py _decoders",  # of types of the source, as the next four
    "api/validation/known_parts.py _strict_owners",
    "api/views/schema.py _members",
    "api/views/schema.py decoder_of",
    "api/views/schema.py strict_twin",
    "cli/configuration/fields.py config_fields",  # of nothing
    "cli/controller_identities.py controller_specs",  # of nothing
    "cli/live.py has_record",  # of the decisions of one answer; it lives for one command
    "server/http/tables.py columns_of",  # of kinds
    "store/etcd/transport.py _keep_grpc_alive",  # of nothing
]


def test_a_new_dict_is_found(tmp_path: Path) -> None:
    """The search itself: dicts of modules and objects in every spelling, and none of functions or structs."""
    text = """
A = {}
B: dict[str, int] = dict()
C = {1: 2}
class K:
    field: dict[str, int] = {}
    def __init__(self):
        self.a: dict[str, int] = {}
        self.b, self.c = OrderedDict(), 1
        self.d = collections.defaultdict(list)
        self.e = Counter[str]()
        local = {}
        self.g = {1: 2}
        self.h = {each: 1 for each in range(3)}
        self.i = dict(local)
        self.never = {1: 2}
    def clear(self):
        self.f = {}
        self.g[3] = self.h[4] = 5
        self.i.setdefault(1, 2)
"""
    path = tmp_path / "module.py"
    path.write_text(text)
    assert dicts_of(ast.parse(path.read_text())) == {"A", "B"} | {f"K.{each}" for each in "abdefghi"}
