"""Programs, scenarios and executors that a command line names: one that cannot be used is a wrong command line.

A hunt, a replay and a run of a scenario end with 1 if an invariant is broken: a wrong name must not look like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def known_targets() -> Iterator[None]:
    """Errors about a target become `UsageError`, with exit code 2."""
    from kedge.kept import BadKeptFile
    from kedge.sim.kernel.hunt import UnknownExecutor
    from kedge.sim.kernel.targets import UnknownTarget
    from kedge.sim.scenario.document import ScenarioError

    try:
        yield
    except (BadKeptFile, ScenarioError, UnknownExecutor, UnknownTarget) as error:
        raise click.UsageError(str(error)) from error
