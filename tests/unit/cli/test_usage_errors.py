"""A wrong command line: one sentence with the next step, and exit code 2."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from kedge.cli import UsageSentence, main, plain_flags


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
        (["apply", "-f", "-", "--server-side"], "kedge apply", ["--server-side", "kubectl apply --server-side"]),
        (["apply", "-f", "-", "--prune"], "kedge apply", ["--prune", "kedge delete -f FILE"]),
        (["logs"], "kedge logs", ["name one pod"]),
        (["up", "--keep"], "kedge up", ["--demo"]),
        (["agent", "--kubeconfig", "/nowhere"], "kedge agent", ["/nowhere is no file"]),
        (["hunt"], "kedge hunt", ["missing argument"]),
        # objects
        (["get"], "kedge get", ["resource type", "kedge get --types"]),
        (["get", ""], "kedge get", ["resource type"]),
        (["get", "pods", "deploy/web"], "kedge get", ["'pods' has no type", "TYPE/NAME"]),
        (["get", "pods/"], "kedge get", ["'pods/' is not TYPE/NAME"]),
        (["get", "pods", "-f", "-"], "kedge get", ["-f", "names"]),
        (["get", "pods", "-f", "/nowhere.yaml"], "kedge get", ["/nowhere.yaml"]),
        (["get", "pods", "-o", "jsn"], "kedge get", ["'jsn'", "jsonpath=TEMPLATE"]),
        (["get", "pods", "-o", "jsonpath={.a"], "kedge get", ["jsonpath", "not closed"]),
        (["get", "pods", "--sort-by", "{.a"], "kedge get", ["jsonpath", "not closed"]),
        (["get", "pods", "-l", "=="], "kedge get", ["'=='", "app=web"]),
        (["get", "pods", "web", "-A"], "kedge get", ["-A", "name"]),
        (["get", "pod/web", "-l", "a=b"], "kedge get", ["selectors", "name"]),
        (["get", "-f", "-", "-l", "a=b"], "kedge get", ["selectors", "name"]),
        (["get", "pods", "--watch", "--sort-by", ".metadata.name"], "kedge get", ["--watch", "--sort-by"]),
        (["get", "pods,deploy", "--watch"], "kedge get", ["one type"]),
        (["get", "pods", "a", "b", "--watch-only"], "kedge get", ["one type"]),
        (["get", "pod/a", "pod/b", "--watch"], "kedge get", ["one type"]),
        (["get", "pods", "--output-watch-events"], "kedge get", ["--watch-only"]),
        (["get", "pods", "--kubeconfig", "/nowhere"], "kedge get", ["/nowhere", "kedge up"]),
        (["describe", "pod/web", "-l", "a=b"], "kedge describe", ["-l"]),
        (["describe", "pod", "deploy/web"], "kedge describe", ["'pod' has no type"]),
        (["apply", "-f", "/nowhere.yaml"], "kedge apply", ["/nowhere.yaml"]),
        (["apply", "-f", "-", "-o", "table"], "kedge apply", ["'table'", "yaml"]),
        (["apply", "-f", "-", "--dry-run=maybe"], "kedge apply", ["maybe", "server"]),
        (["delete"], "kedge delete", ["resource type"]),
        (["delete", "pods"], "kedge delete", ["pods NAME", "-l", "--all"]),
        (["delete", "pods", "x", "--all"], "kedge delete", ["the name or --all"]),
        (["delete", "pods", "--all", "-l", "a=b"], "kedge delete", ["-l or --all"]),
        (["delete", "-f", "-", "-l", "a=b"], "kedge delete", ["-f or -l"]),
        (["delete", "pod", "x", "--now", "--grace-period=3"], "kedge delete", ["--now"]),
        (["delete", "pod", "x", "--force", "--grace-period=3"], "kedge delete", ["--force"]),
        (["delete", "pod", "x", "--dry-run=maybe"], "kedge delete", ["maybe", "server"]),
        (["scale", "--replicas=1"], "kedge scale", ["resource type"]),
        (["scale", "deploy/web", "-l", "a=b", "--replicas=1"], "kedge scale", ["the name or -l"]),
        (["rollout", "status", "deploy"], "kedge rollout status", ["deploy NAME"]),
        (["wait", "pods", "--for=delete"], "kedge wait", ["pods NAME", "--all"]),
        (["wait", "pod/x", "--for=foo"], "kedge wait", ["--for=foo", "condition=NAME"]),
        (["wait", "pod/x", "--for=condition="], "kedge wait", ["condition=NAME"]),
        (["wait", "pod/x", "--for=jsonpath={.a"], "kedge wait", ["not closed"]),
        (["logs", "deploy/"], "kedge logs", ["deployment/web"]),
        (["logs", "web", "--tail", "-2"], "kedge logs", ["--tail"]),
        (["logs", "web", "--since-time", "noon"], "kedge logs", ["'noon'", "RFC 3339"]),
        (["logs", "web", "--since=1m", "--since-time=2026-01-31T12:00:00Z"], "kedge logs", ["--since-time"]),
        (["logs", "web", "-c", "main", "--all-containers"], "kedge logs", ["--all-containers", "main"]),
        (["exec", "deploy/", "true"], "kedge exec", ["deployment/web"]),
        (["top", "pods", "web", "-A"], "kedge top", ["-A", "web"]),
        (["cordon"], "kedge cordon", ["name nodes", "-l"]),
        (["uncordon", "node-1", "-l", "a=b"], "kedge uncordon", ["name nodes", "-l"]),
        (["drain"], "kedge drain", ["name nodes", "-l"]),
        (["drain", "node-1", "--pod-selector", "in in"], "kedge drain", ["--pod-selector"]),
        (["drain", "node-1", "--dry-run", "maybe"], "kedge drain", ["maybe", "client"]),
        (["record", "start", "--object", "web"], "kedge record start", ["'web'", "KIND/NAME"]),
        # explanations
        (["why", "nonsense/web"], "kedge why", ["'nonsense'", "deployment/NAME"]),
        (["why", "web", "--what-if", "x"], "kedge why", ["'x'", "quota/"]),
        (["timeline", "nonsense/web"], "kedge timeline", ["'nonsense'"]),
        # components and simulations
        (["scheduler", "--kubeconfig", __file__, "--server", "ftp://x"], "kedge scheduler", ["ftp://x", "https://"]),
        (["up", "--config", "/nowhere"], "kedge up", ["/nowhere"]),
        (["config", "check", "/nowhere"], "kedge config check", ["/nowhere"]),
        (["hunt", "nonsense"], "kedge hunt", ["file.py:function"]),
        (["hunt", "nowhere.yaml"], "kedge hunt", ["nowhere.yaml", "kedge scenario list"]),
        (["hunt", "stale-policy-canary", "--without", "nonsense"], "kedge hunt", ["'nonsense'"]),
        (["hunt", "stale-policy-canary", "--seeds", "0"], "kedge hunt", ["--seeds"]),
        (["scenario", "run", "nonsense"], "kedge scenario run", ["'nonsense'"]),
        (["chaos", "nonsense"], "kedge chaos", ["'nonsense'"]),
        (["replay", "/nowhere"], "kedge replay", ["/nowhere"]),
        (["replay", __file__], "kedge replay", ["is not a file that kedge kept"]),
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


def test_a_sentence_of_click_begins_small_and_a_name_keeps_its_capital() -> None:
    shown = UsageSentence(click.UsageError("Small.yaml:1:1: a scenario has no `nonsense`")).format_message()
    assert shown.startswith("kedge: Small.yaml:1:1")
    assert UsageSentence(click.UsageError("No such command 'x'.")).format_message().startswith("kedge: no such")


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
