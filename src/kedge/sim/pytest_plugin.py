"""A pytest plugin: `@simulate` tests run many seeds; failures are shrunk, kept, and printed with a replay command.
The fixture `kedge_server` is a real API server with an empty store for each test.

It is loaded in every run of pytest, so it imports the kernel only when a test needs it. Each test is one item, on any
worker of pytest-xdist; files are written atomically, so workers do not conflict.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kedge.sim.api_fixture import RunningServer, ServerThread
    from kedge.sim.kernel.artefacts import Artefact
    from kedge.sim.kernel.targets import SimulationTarget

SECTION = "kedge simulation"
SHRINK_RUNS_MAX = 400
_ATTRIBUTE = "kedge_target"


class SimulationFailed(AssertionError):
    """A seed broke an invariant. The text is the failure report; the section below it has the replay command."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kedge", "simulated tests")
    group.addoption("--kedge-seeds", type=int, default=None, metavar="N", help="seeds for every @simulate test")
    group.addoption("--kedge-start", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    group.addoption(
        "--kedge-replay", type=Path, default=None, metavar="FILE", help="run only the failure in FILE again"
    )
    group.addoption(
        "--kedge-failures", type=Path, default=None, metavar="DIR", help="where failures are kept (.kedge/failures)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kedge_server(store): the store of the fixture kedge_server: memory or sqlite")


@pytest.fixture(scope="session")
def _kedge_server_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    from kedge.sim.api_fixture import ServerThread

    thread = ServerThread(tmp_path_factory.mktemp("kedge-server"))
    yield thread
    thread.close()


@pytest.fixture
def kedge_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _kedge_server_thread: ServerThread
) -> Iterator[RunningServer]:
    """An API server over HTTPS with an empty store: `.url`, `.kubeconfig`, `.environment`.

    `@pytest.mark.kedge_server(store="sqlite")` gives it a file instead of memory.
    """
    marker = request.node.get_closest_marker("kedge_server")
    store = str(marker.kwargs.get("store", "memory")) if marker is not None else "memory"
    with _kedge_server_thread.server(store, tmp_path_factory.mktemp("kedge-server")) as running:
        yield running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--kedge-replay`, keep only the test that the failure came from."""
    if config.getoption("--kedge-replay") is None:
        return
    target = _recorded(config).target
    kept = [item for item in items if _target_of(item) is not None and _reference(item) == target]
    if not kept:
        raise pytest.UsageError(f"none of the collected tests is {target}: give pytest the file that has it")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    target = _target_of(pyfuncitem)
    if target is None:
        return None
    if pyfuncitem.config.getoption("--kedge-replay") is not None:
        _replay(pyfuncitem, target)
    else:
        _run_seeds(pyfuncitem, target)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, SimulationFailed):
        report.longrepr = str(call.excinfo.value)
        report.sections.append((SECTION, _how_to_replay(item)))
    return report


# -- running ---------------------------------------------------------------------------------------


def _run_seeds(item: pytest.Function, target: SimulationTarget) -> None:
    from kedge.sim.kernel import make_artefact, shrink, write_artefact
    from kedge.sim.kernel.failure_report import describe_failure

    given = item.config.getoption("--kedge-seeds")
    start = item.config.getoption("--kedge-start")
    seeds = target.seeds if given is None else given
    target = target.calibrated()
    reached: set[str] = set()
    for seed in range(start, start + seeds):
        outcome = target.run(seed)
        reached.update(outcome.marks)
        if outcome.violation is not None:
            shrunk = shrink(target, outcome, runs_max=SHRINK_RUNS_MAX)
            artefact = make_artefact(target, shrunk.outcome, shrunk.conditions)
            path = write_artefact(artefact, _failures(item.config))
            item.stash[_PATH] = path
            raise SimulationFailed(f"seed {seed} of {item.name}\n{describe_failure(artefact)}")
    missed = [mark for mark in target.marks if mark not in reached]
    if missed and seeds >= target.seeds:
        pytest.fail(f"no seed of {seeds} reached {', '.join(missed)}: the test proves nothing there", pytrace=False)


def _replay(item: pytest.Function, target: SimulationTarget) -> None:
    from kedge.sim.kernel import ReplayVerdict, replay
    from kedge.sim.kernel.failure_report import describe_failure

    artefact = _recorded(item.config)
    again = replay(artefact, target=target)
    if again.verdict is not ReplayVerdict.HOLDS:
        item.stash[_PATH] = item.config.getoption("--kedge-replay")
        raise SimulationFailed(f"{again.summary}\n{again.drift}\n{describe_failure(artefact)}")


# -- targets and files -----------------------------------------------------------------------------

_PATH = pytest.StashKey[Path]()
_ARTEFACT = pytest.StashKey["Artefact"]()


def _target_of(item: pytest.Item) -> SimulationTarget | None:
    from dataclasses import replace

    target: SimulationTarget | None = getattr(getattr(item, "obj", None), _ATTRIBUTE, None)
    return None if target is None else replace(target, reference=_reference(item))


def _reference(item: pytest.Item) -> str:
    """The reference of a test for `kedge replay`: its file, relative to the root of the tests, and its name."""
    name = getattr(item, "originalname", None) or item.name
    try:
        return f"{item.path.relative_to(item.config.rootpath).as_posix()}:{name}"
    except ValueError:
        return f"{item.path}:{name}"


def _recorded(config: pytest.Config) -> Artefact:
    from kedge.kept import BadKeptFile
    from kedge.sim.kernel import read_artefact

    if _ARTEFACT not in config.stash:
        try:
            config.stash[_ARTEFACT] = read_artefact(config.getoption("--kedge-replay"))
        except BadKeptFile as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_ARTEFACT]


def _failures(config: pytest.Config) -> Path:
    chosen: Path | None = config.getoption("--kedge-failures")
    return chosen if chosen is not None else config.rootpath / ".kedge" / "failures"


def _how_to_replay(item: pytest.Item) -> str:
    path = item.stash.get(_PATH, None)
    if path is None:
        return "the failure could not be written to a file"
    root = item.config.rootpath
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return (
        f"kept in    {shown}\n"
        f"replay     kedge replay {shown}\n"
        f"as a test  pytest {_reference(item).replace('.py:', '.py::')} --kedge-replay {shown}"
    )
