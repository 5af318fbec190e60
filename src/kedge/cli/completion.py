"""`kedge completion SHELL`: the script that makes a shell complete verbs, options, types and names."""

from __future__ import annotations

import click

VARIABLE = "_KEDGE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: `source <(kedge completion bash)`, and likewise for zsh.

    For fish: `kedge completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from kedge.cli import main

    found = get_completion_class(shell)
    assert found is not None
    maker = found(main, {}, "kedge", VARIABLE)
    # Not `source()`: for bash it runs the program to look at its version, and the script is the same.
    click.echo(maker.source_template % maker.source_vars())
