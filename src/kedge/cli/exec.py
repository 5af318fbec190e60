"""`kedge exec`: run a command in a container, with kubectl's flags. Its exit code becomes that of kedge."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.resources.arguments import check_words
from kedge.cli.resources.durations import DURATION
from kedge.cli.resources.session import IncompleteCommand, ServerChoice, Session, cluster_options, run_session
from kedge.cli.resources.shell_completion import complete_pods
from kedge.errors import Forbidden, OperatingError, Terminal, Unauthorized

if TYPE_CHECKING:
    from kedge.client.http.pod_streams import ExecSocket

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_READ_BYTES = 32 * 1024


@click.command("exec", context_settings={"ignore_unknown_options": False})
@click.argument("pod", metavar="POD | TYPE/NAME", shell_complete=complete_pods)
@click.argument("command", nargs=-1, required=True)
@click.option("-c", "--container", default="", help="The container; the first of the pod if none is named.")
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option(
    "--pod-running-timeout", "within_s", type=DURATION, default="1m", help="How long to wait for a workload's pod."
)
@cluster_options
def exec(  # noqa: A001
    choice: ServerChoice, pod: str, command: tuple[str, ...], container: str, stdin: bool, tty: bool, within_s: float
) -> None:
    """Run COMMAND in a container of a pod: kedge exec POD -- COMMAND. A workload stands for a ready pod of it."""
    if "/" in pod:
        check_words([pod])
    if tty and not (stdin and sys.stdin.isatty()):
        click.echo("no terminal is here: the command gets none either", err=True)
        tty = False

    async def work(session: Session) -> int:
        from kedge.cli.resources.pod_choice import chosen_container, chosen_pod, rank_for_commands

        found, _ = await chosen_pod(session, pod, rank_for_commands, within_s=within_s)
        query = [("container", chosen_container(found, container))]
        streams = (("stdin", stdin), ("stdout", True), ("stderr", not tty), ("tty", tty))
        query += [(name, "true") for name, wanted in streams if wanted]
        query += [("command", each) for each in command]
        name = str(found["metadata"]["name"])
        try:
            with _raw_terminal(tty):
                return await _run(session, name, query, stdin=stdin, tty=tty)
        except (Forbidden, Unauthorized):
            raise
        except OperatingError as error:
            (pods,) = (await session.catalog()).resolve("pods")
            if sentence := not_running(await session.get(pods, name), query[0][1]):
                raise Terminal(sentence) from error
            raise

    if code := run_session(choice, work):
        click.echo(f"command terminated with exit code {code}", err=True)
        raise SystemExit(code)


def not_running(pod: Mapping[str, Any], container: str) -> str:
    """The sentence about a container that does not run, with the next step; empty for any other. Pure."""
    name, spec, status = pod["metadata"]["name"], pod["spec"], pod.get("status") or {}
    if container not in [each["name"] for each in (*(spec.get("initContainers") or ()), *spec["containers"])]:
        return ""
    known = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    found: Mapping[str, Any] = next((each for each in known if each.get("name") == container), {})
    state = found.get("state") or {}
    if "running" in state:
        return ""
    reason = next((str(value.get("reason") or "") for value in state.values()), "") or "not started"
    sentence = f"container {container} of pod {name} does not run ({reason}): `kedge why {name}` has the reason"
    if not found.get("restartCount") and "terminated" not in state:
        return sentence
    again = " --previous" if "waiting" in state else ""
    return f"{sentence}, `kedge logs {name} -c {container}{again}` its last output"


async def _run(session: Session, pod: str, query: list[tuple[str, str]], *, stdin: bool, tty: bool) -> int:
    from kedge.client.http.pod_streams import exit_code_of, open_exec

    async with open_exec(session.address, session.namespace, pod, query) as socket:
        sending = [asyncio.ensure_future(_send_input(socket))] if stdin else []
        if tty:
            sending.append(asyncio.ensure_future(_send_sizes(socket)))
        try:
            async for channel, data in socket.messages():
                if channel == ERROR:
                    return exit_code_of(json.loads(data))
                stream = sys.stderr if channel == STDERR else sys.stdout
                stream.buffer.write(data)
                stream.buffer.flush()
        finally:
            for each in sending:
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
    raise IncompleteCommand(
        f"the connection to pod {pod} broke before the command ended: look at the pod, then try again"
    )


async def _send_input(socket: ExecSocket) -> None:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    while True:
        ready.clear()
        with suppress(PermissionError):  # a plain file is always ready
            loop.add_reader(descriptor, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            await socket.send(CLOSE, bytes([STDIN]))
            return
        await socket.send(STDIN, data)


async def _send_sizes(socket: ExecSocket) -> None:
    """Send the size of the terminal now, and after each change."""
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            size = os.get_terminal_size(sys.stdin.fileno())
            await socket.send(RESIZE, json.dumps({"Width": size.columns, "Height": size.lines}).encode())
            await changed.wait()
            changed.clear()
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Pass every key on, Ctrl-C too, and leave the terminal as it was."""
    if not wanted:
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSANOW)  # the default drops keys that were typed already
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
