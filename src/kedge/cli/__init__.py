"""The command line: composition root of production. One module per verb, loaded only when it is called.

The module of a verb has a click command of the same name. Nothing heavy is imported here: `kedge --help` is instant.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

VERBS = {
    "agent": "Run one node: its pods are processes of this machine.",
    "apply": "Create or change objects as manifests declare them.",
    "audit": "Print the audit log of a cluster: users, objects, revisions and decisions.",
    "backup": "Write a backup of a cluster's store, also while it runs.",
    "caches": "Print the caches of a running cluster: revision, lag, age and relists.",
    "chaos": "Run the faults of a scenario against a running cluster, and judge it.",
    "completion": "Print the completion script of a shell.",
    "config": "Check a configuration file, and show the values in effect.",
    "controllers": "Run every controller, in a process of its own.",
    "cordon": "Keep new pods off nodes.",
    "coupling": "Print which controllers can change the inputs of another without calling it.",
    "delete": "Delete objects, and wait until they are gone.",
    "demo": "Find, shrink and replay a bug in a simulated cluster.",
    "describe": "Print everything about objects, with their events.",
    "doctor": "Check what this machine offers, and what works without the rest.",
    "down": "Stop every process of the local cluster.",
    "drain": "Evict the pods of nodes, within disruption budgets.",
    "exec": "Run a command in a container.",
    "get": "Print objects of any type.",
    "hunt": "Run many seeds of a simulated program and report each bug once.",
    "incident": "Record the whole cluster for a while, into one file that can be replayed.",
    "logs": "Print the output of a pod's containers.",
    "queue": "Print the work queues of a running cluster: depth, ages, retries and reasons.",
    "record": "Keep every decision for a while: open, close and list recording windows.",
    "replay": "Run a recorded failure again.",
    "reset": "Remove the state of the local cluster.",
    "restore": "Make a new store from a backup.",
    "rollout": "Follow, undo, restart and pause rollouts.",
    "scale": "Set the number of replicas of a workload.",
    "scenario": "Run an incident on a simulated cluster and print its timeline.",
    "scheduler": "Run a scheduler, in a process of its own.",
    "secrets": "Make and rotate the keys that encrypt Secrets at rest.",
    "shell": "Open a prompt at a moment of a recording.",
    "server": "Serve the API over HTTPS.",
    "store": "Verify the file of a store, and salvage a damaged one.",
    "timeline": "Print the changes of an object and of everything it owns.",
    "token": "Create, list and delete bearer tokens.",
    "top": "Print the usage of nodes and pods.",
    "ui": "Show a recording in a browser: time, place, beliefs and decisions.",
    "uncordon": "Let nodes have new pods again.",
    "up": "Run a whole cluster here, with real processes.",
    "wait": "Wait until objects fulfil a condition.",
    "why": "Explain the state of a pod, a workload or another object.",
    "zoo": "Take one safeguard at a time out of the control plane, and check that the hunt finds each.",
}


class UsageSentence(click.UsageError):
    """A wrong command line as one sentence: the command, the mistake, and where the right form is."""

    def __init__(self, error: click.UsageError) -> None:
        path = error.ctx.command_path if error.ctx is not None else "kedge"
        mistake = " ".join(error.format_message().split()).rstrip(".")
        for found, instead in _PHRASES:
            mistake = re.sub(found, instead, mistake)
        # Sentences of click begin with a capital; ours may begin with the name of a file or object.
        if type(error) is not click.UsageError or mistake.startswith(("No such", "Got unexpected")):
            mistake = f"{mistake[:1].lower()}{mistake[1:]}"
        super().__init__(f"{path}: {mistake}; see `{path} --help`", error.ctx)

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {self.format_message()}", file=file, err=True)


_PHRASES = ((r"\.? \(?Did you mean (.*)\?\)?$", r" (did you mean \1?)"), (r"\. Choose from: *", ": choose from "))
"""click's second sentences, joined to its first."""


@contextmanager
def usage_sentences() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if isinstance(error, (UsageSentence, _HELP)):
            raise
        raise UsageSentence(error) from error


_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Raised by newer releases of click for a group without arguments: it prints the help."""


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def plain_flags(command: click.Command, args: list[str]) -> list[str]:
    """`--wait=false` as kubectl takes it, in the form that click takes: `--no-wait`, or nothing."""
    commands = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    flags = {
        name: option
        for each in commands
        for option in each.params
        if isinstance(option, click.Option) and option.is_flag
        for name in option.opts
    }
    end = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for arg in args[:end]:
        name, equals, value = arg.partition("=")
        option = flags.get(name) if equals else None
        if option is None or value not in _TRUE | _FALSE:
            found.append(arg)
        elif value in _TRUE:
            found.append(name)
        else:
            found += option.secondary_opts[:1]
    return [*found, *args[end:]]


class LazyGroup(click.Group):
    """Lists verbs by name and loads the module of one when it is called."""

    def make_context(self, *arguments: Any, **others: Any) -> click.Context:
        with usage_sentences():
            return super().make_context(*arguments, **others)

    def invoke(self, ctx: click.Context) -> Any:
        with usage_sentences():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else plain_flags(command, rest)

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
