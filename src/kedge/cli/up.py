"""`kedge up`: a whole cluster on this machine, with real processes, from one state folder."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from kedge.cli.audit_options import WRITES, AuditChoice, audit_options, open_audit
from kedge.cli.configuration.option import config_option, current_config
from kedge.cli.encryption_keys import ENCRYPTION_KEYS_OPTION
from kedge.cli.keep_option import DECISIONS_TENANTS_OPTION, arguments_of, keep_rules
from kedge.cli.listen_address import LISTEN_OPTION, parse_listen
from kedge.cli.log_options import log_arguments, log_options
from kedge.cli.otlp_option import OTLP_ENDPOINT_OPTION, span_sender

if TYPE_CHECKING:
    from kedge.cli.local import LocalCluster
    from kedge.limits import Limits
    from kedge.observe.recording.rules import KeepRules

DETACH_S = 60.0
"""A detached cluster that does not serve by then is reported as failed; its log has the reason."""
READY_S = 10.0
"""Nodes that are not ready by then are left to the stage view: the cluster serves without them."""
LOG = "up.log"


def default_state() -> Path:
    """`$XDG_STATE_HOME/kedge`, as the XDG rules have it."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "kedge"


def state_in_use(state: Path | None) -> Path:
    """The state folder that a reader was given; else that of the kubeconfig in `KUBECONFIG`, if it is one; else the
    default."""
    from kedge.cli.server import KUBECONFIG
    from kedge.cli.state_folder import DECISIONS

    for each in (Path(text) for text in os.environ.get("KUBECONFIG", "").split(os.pathsep) if text and state is None):
        if each.name == KUBECONFIG and (each.parent / DECISIONS).is_dir():
            return each.parent
    return state or default_state()


def with_state(command: str, state: Path) -> str:
    """A command for this state folder, to be typed as it is: the default folder needs no option."""
    return command if state == default_state() else f"{command} --state {shlex.quote(str(state.absolute()))}"


def no_cluster(state: Path, start: str = "kedge up") -> str:
    """The sentence about a state folder without a cluster, with the command that starts one there."""
    return f"no cluster has run in {state}: start one with `{with_state(start, state)}`, or give another --state"


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    show_default="$XDG_STATE_HOME/kedge",
    help="Folder for all state.",
)
@LISTEN_OPTION
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(1, 50), help="Local nodes, spread over zones."
)
@click.option("--detach", "-d", is_flag=True, help="Return once the cluster serves; it keeps running.")
@click.option("--demo", is_flag=True, help="Run the example, break it, show the repair, and stop everything.")
@click.option("--keep", is_flag=True, help="With --demo: leave the cluster running at the end, as --detach does.")
@click.option("--quiet", "-q", is_flag=True, help="Do not follow the stages of workloads.")
@click.option(
    "--replace-keys", is_flag=True, help="Record the keys of this cluster in its store: they were replaced or lost."
)
@ENCRYPTION_KEYS_OPTION
@OTLP_ENDPOINT_OPTION
@DECISIONS_TENANTS_OPTION
@audit_options(WRITES)
@log_options
@config_option
def up(
    state: Path | None,
    listen: str,
    nodes: int,
    detach: bool,
    demo: bool,
    keep: bool,
    quiet: bool,
    replace_keys: bool,
    encryption_keys: Path | None,
    otlp_endpoint: str,
    decisions_tenants: tuple[str, ...],
    audit: AuditChoice,
    limits: Limits,
) -> None:
    """Run a whole cluster here: API server, scheduler, controllers and nodes with real processes.

    State is in $XDG_STATE_HOME/kedge unless --state names another folder. Ctrl-C stops the cluster and leaves its
    processes running; the next `kedge up` finds them again, and `kedge down` stops them.
    """
    from kedge.cli.state_folder import UP_LOCK, command_errors, folder_lock

    host, port = parse_listen(listen)
    folder = state or default_state()
    if demo and detach:
        raise click.UsageError("--demo shows its steps and cannot be detached: leave out --demo or --detach")
    if keep and not demo:
        raise click.UsageError("--keep goes with --demo: without it a cluster keeps its state anyway")
    if demo:
        own = click.get_current_context().get_parameter_source("state") is ParameterSource.COMMANDLINE
        # The folder in a file is that of the real cluster: a demo has one of its own.
        _demo(nodes, state if own else None, limits, keep=keep)
    elif detach:
        with command_errors(folder):
            options = ["--otlp-endpoint", otlp_endpoint, *arguments_of(decisions_tenants), *audit.arguments()]
            if encryption_keys is not None:
                options += ["--encryption-keys", str(encryption_keys)]
            if replace_keys:
                options += ["--replace-keys"]
            _detach(folder, listen, nodes, options)
    else:
        stop = f"stop it with `{with_state('kedge down', folder)}` first"
        signals = _SignalChoice(otlp_endpoint, audit, keep_rules(decisions_tenants))
        keys = _KeyChoice(encryption_keys, replace_keys)
        with command_errors(folder), folder_lock(folder / UP_LOCK, "kedge up", next_step=stop):
            asyncio.run(_run(folder, (host, port), nodes, limits, signals, keys, quiet=quiet))


def _demo(nodes: int, state: Path | None, limits: Limits, *, keep: bool) -> None:
    from kedge.cli.state_folder import command_errors
    from kedge.cli.up_demo import run_demo

    def hand_over(folder: Path, listen: str) -> None:
        _detach(folder, listen, nodes)

    try:
        with command_errors(state):
            asyncio.run(run_demo(nodes, state, limits, hand_over=hand_over if keep else None))
    except asyncio.CancelledError as error:
        raise click.Abort from error


def _detach(folder: Path, listen: str, nodes: int, options: Sequence[str] = ()) -> None:
    """Start `kedge up` in a session of its own, and wait until it serves."""
    from kedge.cli.state_folder import UP_LOCK, holder_of
    from kedge.errors import Unavailable

    if pid := holder_of(folder / UP_LOCK):
        stop = with_state("kedge down", folder)
        raise Unavailable(
            f"kedge up already runs on {folder} (process {pid}): stop it with `{stop}` first, or use another --state"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "kedge", "up", "--quiet", "--state", str(folder), "--listen", listen]
    if (file := current_config().path) is not None:
        command += ["--config", str(file)]
    command += [*log_arguments(), *options]
    with (folder / LOG).open("wb") as log:
        started = subprocess.Popen(
            [*command, "--nodes", str(nodes)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        click.echo(_until_serving(started, folder))
    except KeyboardInterrupt:
        started.terminate()  # it is in a session of its own, so Ctrl-C did not reach it
        started.wait()
        raise


def _until_serving(started: subprocess.Popen[bytes], folder: Path) -> str:
    """Wait until a detached cluster serves; returns its introduction."""
    from kedge.errors import Unavailable

    deadline_s = time.monotonic() + DETACH_S
    while not (shown := (folder / LOG).read_text(encoding="utf-8", errors="replace")).count("\n  kedge down"):
        if started.poll() is not None:
            raise Unavailable(shown.strip().removeprefix("Error: ") or f"kedge up ended: see {folder / LOG}")
        if time.monotonic() > deadline_s:
            started.terminate()
            raise Unavailable(f"kedge up did not serve in {DETACH_S:.0f} s: see {folder / LOG}")
        time.sleep(0.05)
    return shown.rstrip()


def introduction(cluster: LocalCluster, nodes: int, state: Path) -> str:
    """Where it listens, and what to try next."""
    return (
        f"serving {cluster.url} with {nodes} nodes; state is in {state}\n"
        f"  export KUBECONFIG={cluster.kubeconfig.absolute()}\n"
        f"try in another terminal:\n"
        f"  kedge get nodes\n"
        f"  kedge up --demo\n"
        f"  {with_state('kedge down', state)}"
    )


class _SignalChoice(NamedTuple):
    """Where spans go, and what the audit log and the decision log keep."""

    otlp_endpoint: str
    audit: AuditChoice
    rules: KeepRules


class _KeyChoice(NamedTuple):
    """The file of encryption keys, and whether the other keys are recorded instead of those before."""

    encryption: Path | None
    replace: bool


async def _run(
    state: Path,
    listen: tuple[str, int],
    nodes: int,
    limits: Limits,
    signals: _SignalChoice,
    keys: _KeyChoice,
    *,
    quiet: bool,
) -> None:
    from kedge.cli.local import ClusterSignals, local_cluster
    from kedge.env import system_env

    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    env = system_env(limits=limits)
    async with (
        span_sender(signals.otlp_endpoint) as send_spans,
        open_audit(signals.audit, state, env) as auditor,
        local_cluster(
            state,
            *listen,
            nodes,
            env,
            signals=ClusterSignals(send_spans, auditor, signals.rules),
            encryption_keys=keys.encryption,
            replace_keys=keys.replace,
        ) as cluster,
    ):
        await _until_ready(cluster, nodes, stop)
        click.echo(introduction(cluster, nodes, state), err=True)
        await follow_until(cluster, stop, quiet=quiet)
    left = cluster.processes_left
    down = with_state("kedge down", state)
    kept = f"{left} processes of pods keep running (`{down}` stops them)" if left else "nothing keeps running"
    click.echo(f"stopped; {kept}", err=True)


async def _until_ready(cluster: LocalCluster, nodes: int, stop: asyncio.Event) -> None:
    """Wait until the nodes are ready, so that the first command finds them; not for long."""
    from kedge.api.conditions import is_true
    from kedge.api.views import NodeView
    from kedge.api.wellknown import NODE_KIND

    kind = cluster.client.kinds.of_key_kind(NODE_KIND)
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while not stop.is_set():
                found = [each.as_view(NodeView) for each in (await cluster.client.list(kind)).objects]
                if sum(is_true(each.status.conditions, "Ready") for each in found) >= nodes:
                    return
                await asyncio.sleep(0.02)


async def follow_until(cluster: LocalCluster, stop: asyncio.Event, *, quiet: bool) -> None:
    """Show the stages of workloads until `stop` is set or a component fails."""
    from kedge.cli.stage_view import show_stages

    view = None if quiet else asyncio.ensure_future(show_stages(cluster.client, terminal=sys.stderr.isatty()))
    try:
        await cluster.run_until(stop)
    finally:
        if view is not None:
            view.cancel()
            with suppress(asyncio.CancelledError):
                await view
