"""`kedge coupling`: which controllers can change the inputs of another without calling it, from records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.recording_option import at_option, check_at, open_recording, recording_option
from kedge.cli.state_folder import DECISIONS, command_errors
from kedge.cli.up import no_cluster, state_in_use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kedge.observe.readers.coupling import Coupling
    from kedge.observe.readers.recording import Recording
    from kedge.observe.records import Decision
    from kedge.runtime import Reconciler


@click.command()
@click.argument("controller")
@click.option("--decision", default="", metavar="ID", help="Only the inputs of this decision, as `kedge why` names it.")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@recording_option
@at_option()
@click.option("--declared", is_flag=True, help="Add edges that watches and roles (RBAC) declare and no record shows.")
@click.option(
    "--code",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="The code of a controller of yours, as a scenario names it, so that its decisions can be run again.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "dot"]), default="text", show_default=True,
    help="dot is a drawing for Graphviz.",
)  # fmt: skip
def coupling(
    controller: str,
    decision: str,
    state: Path | None,
    recording: Path | None,
    at: str | None,
    declared: bool,
    code: tuple[str, ...],
    output: str,
) -> None:
    """Print which other controllers can change the inputs of CONTROLLER without calling it.

    Each edge is a field that one writes and the other reads: whether a change wakes the reader, and whether another
    value changes a decision. Then paths over two hops, cycles, fights and shared limits.
    """
    check_at(recording, at)
    with command_errors():
        records = open_recording(recording, at)[0] if recording is not None else _from_log(state_in_use(state))
        found = asyncio.run(coupling_from(records, controller, decision=decision, declared=declared, code=code))
    if output == "json":
        import json

        click.echo(json.dumps(found.document(), indent=2))
    else:
        click.echo(found.dot() if output == "dot" else "\n".join(found.lines()))


def _from_log(folder: Path) -> Recording:
    from kedge.cli.live import logged_records
    from kedge.errors import NotFound

    if not (folder / DECISIONS).is_dir():
        raise NotFound(no_cluster(folder))
    return logged_records(folder)


async def coupling_from(
    recording: Recording, controller: str, *, decision: str = "", declared: bool = False, code: Sequence[str] = ()
) -> Coupling:
    """The coupling of a controller, with a verdict on each edge whose decisions can be run again.

    Raises:
        NotFound: the records have no decision of the controller, or not the one that is meant.
    """
    from kedge.cli.declared_components import declared_components, declared_fields
    from kedge.cli.kept_decisions import env_of, idle_runtime, reconcilers_of
    from kedge.cli.perturbed_decisions import PerturbedRuns
    from kedge.observe.readers.coupling import coupling_of

    env = env_of(recording)
    own = _own_controllers(code, idle_runtime(env))
    runs = PerturbedRuns.of(recording, {**reconcilers_of(env), **own})
    one = _decision(recording, controller, decision)
    await runs.note_fields([one] if one is not None else recording.decisions)
    components = declared_components() if declared else ()
    found = coupling_of(
        recording, controller, decision=one, declared_fields=declared_fields(recording), declared=components
    )
    return await runs.judged(found, [one] if one is not None else recording.decisions)


def _own_controllers(code: Sequence[str], runtime: object) -> Mapping[str, Reconciler]:
    from kedge.cli.named_targets import known_targets
    from kedge.sim.kernel.targets import find_object

    with known_targets():
        makers = [find_object(each, "a controller", "a function of a ControllerRuntime") for each in code]
    made = [each(runtime) for each in makers]
    return {each.name: each.reconciler for each in made}


def _decision(recording: Recording, controller: str, decision: str) -> Decision | None:
    from kedge.errors import NotFound

    known = {each.controller for each in recording.decisions}
    known |= {row.controller for counts in recording.counts for row in counts.rows}
    if controller not in known:
        raise NotFound(f"no record has a decision of {controller}: use one of {', '.join(sorted(known))}")
    if not decision:
        return None
    found = [each for each in recording.decisions if each.id == decision and each.controller == controller]
    if not found:
        raise NotFound(f"decision {decision} of {controller} was not kept: `kedge timeline NAME -o json` has their ids")
    return found[0]
