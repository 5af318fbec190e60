"""`kedge chaos FILE`: the fault steps of a scenario against a running cluster of real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.up import default_state

if TYPE_CHECKING:
    from kedge.cli.live_faults.chaos_run import ChaosResult
    from kedge.sim.scenario import Scenario


@click.command()
@click.argument("file", metavar="FILE|NAME")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path, file_okay=False), help="Folder for the records; else in the state."
)
@click.option("--quiet", "-q", is_flag=True, help="Print only the result.")
def chaos(file: str, state: Path | None, out: Path | None, quiet: bool) -> None:
    """Run the steps of a scenario against the cluster that `kedge up` runs here: kill, pause, cut, delay.

    Only processes and links of this cluster are touched, and every fault is undone at the end, also after Ctrl-C. The
    history and the decisions are recorded, judged by the invariants of the simulator, and kept; Ctrl-C keeps those so
    far. Exits with 0 if every expectation and every invariant held, else with 1.
    """
    from kedge.cli.live_faults.chaos_run import keep_chaos
    from kedge.cli.named_targets import known_targets
    from kedge.cli.state_folder import command_errors
    from kedge.sim.scenario import load_scenario

    folder = state or default_state()
    with known_targets():
        found = load_scenario(file)
    with command_errors(folder):
        try:
            result = asyncio.run(_run(found, folder, _silent if quiet else _reporter()))
        except asyncio.CancelledError as error:
            click.echo("interrupted: every fault is undone, and nothing is kept", err=True)
            raise click.Abort from error
        if result.interrupted:
            click.echo("interrupted: every fault is undone, and the records so far are kept", err=True)
        click.echo(_verdict(found, result))  # first: a full disk must not cost the verdict too
        kept = keep_chaos(found, result, out or folder / "chaos")
    click.echo(f"kept:   {kept}")
    raise SystemExit(1 if result.violations or result.interrupted else 0)


def _silent(kind: str, text: str) -> None:
    del kind, text


def _reporter() -> Callable[[str, str], None]:
    began_s = time.monotonic()

    def report(kind: str, text: str) -> None:
        click.echo(f"{time.monotonic() - began_s:7.1f}s  {kind:<9}  {text}", err=True)

    return report


async def _run(found: Scenario, folder: Path, report: Callable[[str, str], None]) -> ChaosResult:
    from kedge.cli.live_faults.chaos_run import run_chaos
    from kedge.env import system_env

    running = asyncio.ensure_future(run_chaos(found, folder, system_env(), report))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, running.cancel)
    return await running


def _verdict(found: Scenario, result: ChaosResult) -> str:
    counts = f"{result.steps} steps, {result.faults} faults, {len(result.commits)} commits judged"
    if result.interrupted and not result.violations:
        return f"interrupted: {found.name}; {counts}; no invariant was broken so far"
    if not result.violations:
        return f"passed: {found.name}; {counts}; every expectation and every invariant held"
    return "\n".join([f"failed: {found.name}; {counts}", *(f"broken: {each}" for each in result.violations)])
