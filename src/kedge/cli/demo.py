"""`kedge demo`: a controller meets a lost reply. The hunt finds the duplicate, replays it, and shows the mended one."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many worlds to try.")
def demo(seeds: int) -> None:
    """Find a duplicate pod that needs a reply lost after its commit, run it again, and show the controller that does
    not make it."""
    from rich.console import Console
    from rich.progress import Progress

    from kedge.sim.examples.lost_reply import careful, careless
    from kedge.sim.kernel import run

    console = Console()
    console.print(
        "A ReplicaSet wants [bold]3[/] pods. Requests cross a simulated network that may lose, delay or repeat them;"
        " hosts may pause and crash. Nothing here sleeps: time is virtual.\n"
    )
    found = None
    with Progress(console=console, transient=True) as progress:
        for seed in progress.track(range(seeds), description="a controller that takes a timeout for a failure"):
            outcome = run(careless, seed)
            if outcome.violation is not None:
                found = outcome
                break
    if found is None or found.violation is None:
        console.print(f"No seed of {seeds} found the duplicate: try more with --seeds.")
        sys.exit(1)
    console.print(f"[red]seed {found.seed}[/] breaks [bold]{found.violation.invariant}[/]: {found.violation.message}")
    console.print(f"What had to go wrong: {', '.join(str(fault) for fault in found.faults) or 'nothing'}\n")

    again = run(careless, found.tape)
    same = again.hash == found.hash
    console.print(
        f"Run again from its tape: [{'green' if same else 'red'}]{'the same' if same else 'another'}[/] run,"
        f" {again.steps} steps, trace {again.hash[:16]}\n"
    )

    broken = []
    with Progress(console=console, transient=True) as progress:
        for seed in progress.track(range(seeds), description="one that ensures a pod for each slot"):
            if run(careful, seed).violation is not None:
                broken.append(seed)
    console.print(
        f"A controller that ensures a pod for each slot, in the same {seeds} worlds:"
        f" [{'red' if broken else 'green'}]{len(broken)} broken[/]"
    )
    sys.exit(0 if same and not broken else 1)
