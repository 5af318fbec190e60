"""The command line: composition root of production. One module per verb, loaded only when it is called.

The module of a verb has a click command of the same name. Nothing heavy is imported here: `kedge --help` is instant.
"""

from __future__ import annotations

import importlib

import click

VERBS = {
    "agent": "Run one node: its pods are processes of this machine.",
    "controllers": "Run every controller, in a process of its own.",
    "demo": "Find, shrink and replay a bug in a simulated cluster.",
    "down": "Stop every process of the local cluster.",
    "hunt": "Run many seeds of a simulated program and report each bug once.",
    "replay": "Run a recorded failure again.",
    "scenario": "Run an incident on a simulated cluster and print its timeline.",
    "scheduler": "Run a scheduler, in a process of its own.",
    "server": "Serve the API over HTTPS.",
    "up": "Run a whole cluster here, with real processes.",
    "why": "Explain the state of a pod or a Deployment.",
    "zoo": "Take one safeguard at a time out of the control plane, and check that the hunt finds each.",
}


class LazyGroup(click.Group):
    """Lists verbs by name and loads the module of one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"kedge.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kedge")
def main() -> None:
    """A distributed scheduler and control plane that can be rewound."""
