"""Mutation operators: small edits of a source text that each weaken a safeguard. Pure: text in, edits out.

An edit replaces the text between two positions of a syntax node, so that a diff shows the changed line and nothing
else. `draw` chooses among the edits of the lines that clean worlds execute.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

SAFETY_ARGUMENTS = frozenset(
    {
        "checks",
        "deadline",
        "deadline_s",
        "expected",
        "fence",
        "floor",
        "generation",
        "if_absent",
        "max_age_s",
        "observed_revision",
        "operation_id",
        "owner_uid",
        "precondition",
        "preconditions",
        "resource_version",
        "revision",
        "timeout_s",
        "uid",
    }
)
"""Keyword arguments without which a call still works, but no longer proves that it acts on the right thing in time."""
_OFF_BY_ONE: Mapping[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """One mutation of a source text."""

    line: int
    """The first line of the statement that it changes: the line that a world must execute."""
    begin: int
    """Offsets in the UTF-8 text."""
    end: int
    operator: str
    text: str

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.begin] + self.text.encode() + data[self.end :]).decode()


class _Positions:
    """Offsets of syntax nodes in the UTF-8 text."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def begin(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.stmt | ast.expr | ast.keyword) -> str:
        return self.data[self.begin(node) : self.end(node)].decode()


@dataclass(frozen=True, slots=True)
class _Site:
    """A statement of a function, with what its operators need to know about the function."""

    statement: ast.stmt
    function: _Function
    known: frozenset[str]
    """Names that have a value before the statement."""
    at: _Positions

    def edit(self, operator: str, node: ast.stmt | ast.expr, text: str) -> Edit:
        return Edit(self.statement.lineno, self.at.begin(node), self.at.end(node), operator, text)


def edits_of(source: str) -> list[Edit]:
    """Every edit of a source text, in order of position. Only statements within functions are edited."""
    at = _Positions(source)
    found: set[Edit] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, _Function):
            for site in _sites(function, at):
                for operator in OPERATORS.values():
                    found.update(operator(site))
    return sorted(found)


def is_mutation(before: str, after: str) -> bool:
    """Whether the text after an edit is a program, and another one."""
    try:
        return ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False


def _sites(function: _Function, at: _Positions) -> Iterator[_Site]:
    arguments = function.args
    known = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for statement in _statements(function.body):
        yield _Site(statement, function, frozenset(known), at)
        known |= {
            node.id for node in _own_nodes(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body in order, without those of functions and classes inside it."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield statement
        for block in blocks_of(statement):
            yield from _statements(block)


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The bodies of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list) and block:
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without the statements in its bodies and without nested functions."""
    stack: list[ast.AST] = [each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt)]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


# -- operators -------------------------------------------------------------------------------------


def _guard_negated(site: _Site) -> Iterator[Edit]:
    """`if not ready: return` returns if it is ready, and goes on if it is not."""
    if isinstance(site.statement, ast.If) and _is_guard(site.statement):
        yield site.edit("guard negated", site.statement.test, f"not ({site.at.text(site.statement.test)})")


def _guard_removed(site: _Site) -> Iterator[Edit]:
    """`if stale: raise` never raises."""
    if isinstance(site.statement, ast.If) and _is_guard(site.statement):
        yield site.edit("guard removed", site.statement.test, "False")


def _is_guard(statement: ast.If) -> bool:
    return not statement.orelse and isinstance(statement.body[-1], _JUMPS)


def _condition_removed(site: _Site) -> Iterator[Edit]:
    """One condition of several, or the filter of a comprehension, always holds."""
    for node in _own_nodes(site.statement):
        if isinstance(node, ast.BoolOp) and _is_condition(site.statement, node):
            neutral = "True" if isinstance(node.op, ast.And) else "False"
            yield from (site.edit("condition removed", each, neutral) for each in node.values)
        elif isinstance(node, ast.comprehension):
            yield from (site.edit("condition removed", each, "True") for each in node.ifs)


def _is_condition(statement: ast.stmt, node: ast.BoolOp) -> bool:
    """Whether the value decides. `given or default` is a choice of values, and no condition."""
    if isinstance(statement, (ast.If, ast.While)):
        return True
    return any(isinstance(each, (ast.Compare, ast.UnaryOp)) for each in node.values)


def _check_dropped(site: _Site) -> Iterator[Edit]:
    statement = site.statement
    if not isinstance(statement, ast.Expr):
        return
    call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    if isinstance(call, ast.Call) and _called(call).lstrip("_").split("_")[0] in ("check", "require", "verify"):
        yield site.edit("check dropped", statement, "pass")


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _raise_dropped(site: _Site) -> Iterator[Edit]:
    if isinstance(site.statement, ast.Raise):
        yield site.edit("raise dropped", site.statement, "pass")


def _argument_dropped(site: _Site) -> Iterator[Edit]:
    """A call without its precondition, fence or deadline."""
    at = site.at
    for node in _own_nodes(site.statement):
        if not isinstance(node, ast.Call):
            continue
        parts: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        for keyword in node.keywords:
            if keyword.arg not in SAFETY_ARGUMENTS or isinstance(keyword.value, ast.Constant):
                continue
            begin, end = at.begin(keyword), at.end(keyword)
            later = [at.begin(each) for each in parts if at.begin(each) > begin]
            if later:
                end = min(later)
            elif len(parts) == 1:
                end = at.end(node) - 1
            else:
                begin = len(at.data[:begin].rstrip().removesuffix(b","))
            yield Edit(site.statement.lineno, begin, end, "argument dropped", "")


def _off_by_one(site: _Site) -> Iterator[Edit]:
    at = site.at
    for node in _own_nodes(site.statement):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OFF_BY_ONE:
            begin, end = at.end(node.left), at.begin(node.comparators[0])
            between = at.data[begin:end].decode()
            sign = between.strip(" ()\n")
            other = _OFF_BY_ONE[type(node.ops[0])]
            yield Edit(site.statement.lineno, begin, end, "off by one", between.replace(sign, other, 1))


def _wait_skipped(site: _Site) -> Iterator[Edit]:
    statement = site.statement
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Await):
        yield site.edit("wait skipped", statement, "pass")


def _read_skipped(site: _Site) -> Iterator[Edit]:
    """`pod = await read(key)` where the function already has a pod: it keeps the old one."""
    match site.statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Await()) if name in site.known:
            yield site.edit("read skipped", site.statement, "pass")


def _early_return(site: _Site) -> Iterator[Edit]:
    """A function that returns nothing ends before one of its statements."""
    statement, returns = site.statement, site.function.returns
    nothing = isinstance(returns, ast.Constant) and returns.value is None
    if not nothing or statement not in site.function.body or isinstance(statement, (ast.Pass, *_JUMPS)):
        return
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    begin = site.at.begin(statement)
    yield Edit(statement.lineno, begin, begin, "early return", "return\n" + " " * statement.col_offset)


OPERATORS: Mapping[str, Callable[[_Site], Iterator[Edit]]] = {
    "guard negated": _guard_negated,
    "guard removed": _guard_removed,
    "condition removed": _condition_removed,
    "check dropped": _check_dropped,
    "raise dropped": _raise_dropped,
    "argument dropped": _argument_dropped,
    "off by one": _off_by_one,
    "wait skipped": _wait_skipped,
    "read skipped": _read_skipped,
    "early return": _early_return,
}
