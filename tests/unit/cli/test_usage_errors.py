"""A wrong command line: one sentence with the next step, and exit code 2."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from kedge.cli import main, plain_flags


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="kedge")


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        (["nonsense"], "kedge", ["no such command 'nonsense'"]),
        (["--nonsense"], "kedge", ["--nonsense"]),
        (["get", "--contxt", "x"], "kedge get", ["--contxt", "(did you mean"]),
        (["describe"], "kedge describe", ["missing argument"]),
        (["scale", "deploy/web"], "kedge scale", ["missing option", "--replicas"]),
        (["scale", "deploy/web", "--replicas", "many"], "kedge scale", ["--replicas", "'many'"]),
        (["rollout", "nonsense", "deploy/web"], "kedge rollout", ["nonsense"]),
        (["rollout", "undo"], "kedge rollout undo", ["missing argument"]),
        (["completion"], "kedge completion", ["missing argument", "choose from", "bash", "fish"]),
        (["exec", "pod"], "kedge exec", ["missing argument"]),
        (["top", "clouds"], "kedge top", ["clouds", "nodes"]),
        (["top", "nodes", "--containers"], "kedge top", ["--containers is for pods"]),
        (["wait", "pod/x", "--for", "delete", "--timeout", "soon"], "kedge wait", ["soon", "30s"]),
        (["delete", "--cascade", "sideways"], "kedge delete", ["sideways", "orphan"]),
        (["apply"], "kedge apply", ["-f FILE"]),
        (["apply", "-f", "x", "--server-side"], "kedge apply", ["--server-side", "kubectl apply --server-side"]),
        (["apply", "-f", "x", "--prune"], "kedge apply", ["--prune", "kedge delete -f FILE"]),
        (["logs"], "kedge logs", ["name one pod"]),
        (["up", "--keep"], "kedge up", ["--demo"]),
        (["agent", "--kubeconfig", "/nowhere"], "kedge agent", ["/nowhere is no file"]),
        (["hunt"], "kedge hunt", ["missing argument"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_with_the_next_step(
    arguments: list[str], command: str, words: list[str]
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {command}: ")
    assert line.endswith(f"; see `{command} --help`")
    assert "\t" not in line
    for word in words:
        assert word in line


def test_a_group_without_a_verb_prints_its_help() -> None:
    for arguments in ((), ("rollout",)):
        printed = run(*arguments).output
        assert printed.startswith("Usage: kedge")
        assert "Commands:" in printed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--wait=false", "pods"], ["--no-wait", "pods"]),
        (["--wait=true"], ["--wait"]),
        (["--all=false", "--all=T"], ["--all"]),
        (["--wait=maybe"], ["--wait=maybe"]),
        (["--namespace=true"], ["--namespace=true"]),
        (["x", "--", "--wait=false"], ["x", "--", "--wait=false"]),
    ],
)
def test_flags_take_the_values_that_kubectl_gives_them(given: list[str], expected: list[str]) -> None:
    command = main.get_command(click.Context(main), "delete")
    assert command is not None
    assert plain_flags(command, given) == expected


def test_flags_of_verbs_below_a_verb_take_values_too() -> None:
    command = main.get_command(click.Context(main), "rollout")
    assert command is not None
    assert plain_flags(command, ["status", "deployment/web", "--watch=false"])[-1] != "--watch=false"
