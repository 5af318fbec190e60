"""`kedge server`: the API server alone, over HTTPS, on SQLite or etcd.

It makes its authority, certificate and kubeconfig at its first start and reuses them. Controllers, scheduler and agents
are other processes: they use the same API.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

from kedge.api.access import MASTERS
from kedge.cli.audit_options import OFF, AuditChoice, audit_options, open_audit
from kedge.cli.configuration.option import config_option
from kedge.cli.controller_identities import controller_roles
from kedge.cli.encryption_keys import ENCRYPTION_KEYS_OPTION, make_cipher, start_cipher
from kedge.cli.event_loop import EVENT_LOOP_OPTION, run_on
from kedge.cli.incidents.history import IncidentHistory
from kedge.cli.incidents.recording_process import recording_process
from kedge.cli.incidents.servers import OwnIncidents
from kedge.cli.keep_option import DECISIONS_TENANTS_OPTION, keep_rules
from kedge.cli.listen_address import LISTEN_OPTION, WILDCARDS, parse_listen
from kedge.cli.live_page import LivePage
from kedge.cli.live_records import CollectedRecords
from kedge.cli.log_options import log_options
from kedge.cli.open_files import raise_open_files
from kedge.cli.otlp_option import OTLP_ENDPOINT_OPTION, span_sender
from kedge.cli.own_certificates import OwnCertificates
from kedge.cli.state_folder import DECISIONS, INCIDENTS, command_errors
from kedge.cli.store_options import StoreChoice, store_options
from kedge.cli.wiring import ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.errors import Unavailable
from kedge.heap import collect_in_time, tune_collector
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.runtime.recording_windows import ADMISSION_KINDS, RecordingWindows
from kedge.server.http.certificate_signer import AuthoritySigner
from kedge.server.http.certificates import ADMIN, Authority
from kedge.server.http.server import ApiServer, bound_tls_buffers
from kedge.server.http.token_keys import SigningKeys
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.server.service.credentials.key_record import ServerKeys
from kedge.ui.page_mount import PageMount

KUBECONFIG = "admin.kubeconfig"
SERVER_USER = "system:kedge-server"
"""The caller beside versions that the server itself writes."""
PROCESS = "server"
"""The name of the process in records."""


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all state.")
@LISTEN_OPTION
@click.option(
    "--advertise",
    metavar="HOST,...",
    default="",
    help="Names and addresses by which other machines reach the server: they are in its certificate, and the first is"
    " in the kubeconfig. With --listen 0.0.0.0 the default is the machine's name and addresses.",
)
@click.option(
    "--pki",
    type=click.Path(path_type=Path, file_okay=False),
    show_default="the state folder",
    help="Folder of the keys that all servers of one store share: ca.pem and service-accounts.pem.",
)
@click.option(
    "--replace-keys",
    is_flag=True,
    help="Record the keys of this server in the store: the old ones were replaced or lost.",
)
@store_options
@ENCRYPTION_KEYS_OPTION
@EVENT_LOOP_OPTION
@OTLP_ENDPOINT_OPTION
@DECISIONS_TENANTS_OPTION
@audit_options(OFF)
@log_options
@config_option
def server(
    state: Path,
    listen: str,
    advertise: str,
    pki: Path | None,
    replace_keys: bool,
    store: StoreChoice,
    encryption_keys: Path | None,
    event_loop: str,
    otlp_endpoint: str,
    decisions_tenants: tuple[str, ...],
    audit: AuditChoice,
    limits: Limits,
) -> None:
    """Serve the API over HTTPS until SIGTERM or Ctrl-C.

    STATE/admin.kubeconfig makes kubectl an administrator.
    """
    host, port = parse_listen(listen)
    with command_errors(state):
        for folder in (state, pki or state):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = _KeyFiles(pki or state, encryption_keys, replace_keys)
        address = _ServerAddress(host, port, advertised_hosts(advertise))
        signals = _ServerSignals(otlp_endpoint, audit, keep_rules(decisions_tenants))
        run_on(event_loop, _run(state, keys, address, store, signals, limits))


def advertised_hosts(text: str) -> tuple[str, ...]:
    """The hosts of `--advertise`, each once."""
    return tuple(dict.fromkeys(host.strip().strip("[]") for host in text.split(",") if host.strip()))


class _ServerAddress(NamedTuple):
    """Where a server listens, and the names by which others reach it."""

    host: str
    port: int
    advertised: tuple[str, ...]


class _KeyFiles(NamedTuple):
    """The keys of a server."""

    pki: Path
    """The folder of the keys that all servers of one store share."""
    encryption: Path | None
    replace: bool
    """Whether the keys in `pki` are recorded in the store instead of those before."""


class _ServerSignals(NamedTuple):
    """Where spans go, and what the audit log and the decision log keep."""

    otlp_endpoint: str
    audit: AuditChoice
    rules: KeepRules


async def _run(
    state: Path, keys: _KeyFiles, address: _ServerAddress, choice: StoreChoice, signals: _ServerSignals, limits: Limits
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    env = system_env(limits=limits)
    raise_open_files(limits)
    tune_collector()
    cipher = make_cipher(keys.encryption, env)
    async with AsyncExitStack() as stack:
        store = await choice.open(state, env, cipher=cipher)
        stack.push_async_callback(store.close)
        auditor = await stack.enter_async_context(open_audit(signals.audit, state, env))
        await start_cipher(keys.encryption, cipher, store, env)
        identity = ensure_identity(state, address.host, env, address.advertised, pki=keys.pki)
        service = Service(store, env, token_keys=identity.token_keys, certificate_signer=identity.signer, cipher=cipher)
        inside = DirectTransport(service, caller=SERVER_USER, groups=(MASTERS,), auditor=auditor)
        await ensure_namespaces(Client(inside, env, component="server"))
        await service.check_keys(identity.shared_keys, replace=keys.replace)
        await service.ensure_default_roles(controller_roles())
        own = Client(inside, env, component="server")
        folder = IncidentFolder(state / INCIDENTS, env, secret=identity.authority.derived_secret("incidents"))
        incidents = OwnIncidents(folder)
        recorder = await stack.enter_async_context(_recorder(own, env, state, incidents, signals))
        service.record_to(recorder)
        upkeep = env.spawn(service.run_upkeep(), name="upkeep")
        credentials = env.spawn(service.run_credentials(), name="credentials")
        collector = env.spawn(collect_in_time(), name="garbage collector")
        running = ApiServer(service, env, agents_tls=identity.agents_tls, auditor=auditor)
        running.handler.incidents = folder
        burns = env.spawn(RecordingWindows(recorder, env).run_burns(running.past_alert), name="burn windows")
        history = env.spawn(IncidentHistory(own, env, incidents, process=PROCESS).run(), name="history for incidents")
        bound = await start_https(running, identity, *address)
        renewals = env.spawn(identity.run_renewals(), name="renewals of certificates")
        page = _page(running, service, own, folder, env, url_of(address.host, bound))
        click.echo(f"serving {url_of(address.host, bound)}", err=True)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopping, upkeep], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running.stop()
        background = (page, history, burns, credentials, collector, renewals)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        if upkeep.done() and not stop.is_set():
            cause = upkeep.exception()
            raise Unavailable(f"the upkeep of the store ended: {cause!r}: start kedge server again") from cause
        upkeep.cancel()


@asynccontextmanager
async def _recorder(
    own: Client, env: Env, state: Path, incidents: OwnIncidents, signals: _ServerSignals
) -> AsyncIterator[Recorder]:
    """The recorder of admission, with its log below the state folder."""
    folder, rules, ruled = state / DECISIONS / PROCESS, signals.rules, ADMISSION_KINDS
    async with (
        span_sender(signals.otlp_endpoint) as send_spans,
        recording_process(
            own, env, folder, incidents, process=PROCESS, rules=rules, send_spans=send_spans, ruled_kinds=ruled
        ) as recorder,
    ):
        yield recorder


def _page(
    running: ApiServer, service: Service, client: Client, folder: IncidentFolder, env: Env, url: str
) -> asyncio.Task[None]:
    """Serve the page of the cluster, whose components send their records while it is open."""
    page = LivePage(client, CollectedRecords(client, folder, env, url), service, env, url)
    running.handler.page = PageMount(page, env)
    return env.spawn(page.run(), name="page")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Certificates and keys of one API server. The first start makes them, and later ones reuse them."""

    state: Path
    authority: Authority
    certificates: OwnCertificates
    token_keys: SigningKeys
    signer: AuthoritySigner
    made_at: datetime

    @property
    def tls(self) -> ssl.SSLContext:
        return self.certificates.tls

    @property
    def agents_tls(self) -> ssl.SSLContext:
        return self.certificates.agents_tls

    async def run_renewals(self) -> None:
        await self.certificates.run_renewals(self.state / KUBECONFIG)

    @property
    def shared_keys(self) -> ServerKeys:
        """Fingerprints of the keys that servers of one store share."""
        return {"authority": (self.authority.fingerprint,), "tokens": self.token_keys.fingerprints}


def ensure_identity(
    state: Path, host: str, env: Env, advertised: tuple[str, ...] = (), *, pki: Path | None = None
) -> ServerIdentity:
    """`pki` is the folder of the keys that servers share, if it is another one."""
    now, pki = env.now(), pki or state
    authority = Authority.ensure(pki, now)
    reached = advertised or (machine_hosts() if host in WILDCARDS else ())
    hosts = sorted({host, "localhost", "127.0.0.1", "::1", *reached} - WILDCARDS)
    bound_tls_buffers(env.limits)
    return ServerIdentity(
        state=state,
        authority=authority,
        certificates=OwnCertificates(authority, state, hosts, pki / "ca.crt", env),
        token_keys=SigningKeys.ensure(pki, authority),
        signer=AuthoritySigner(authority, env.now),
        made_at=now,
    )


def machine_hosts() -> tuple[str, ...]:
    """The name of this machine, and its addresses as far as the name leads to them."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    return (name, *(str(address[0]).partition("%")[0] for *_, address in found))


async def start_https(
    running: ApiServer, identity: ServerIdentity, host: str, port: int, advertised: tuple[str, ...] = ()
) -> int:
    """Listen with this cluster's certificates, and write the administrator's kubeconfig. Returns the port."""
    running.handler.authority_pem = identity.authority.own.certificate_pem.decode()
    try:
        bound = await running.start(host, port, identity.tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}: "
            f"pass another --listen ({host}:0 picks a free port), or stop the program that has this one"
        ) from error
    kubeconfig = identity.state / KUBECONFIG
    url = url_of(advertised[0] if advertised else host, bound)
    identity.authority.ensure_kubeconfig(kubeconfig, url, ADMIN, (MASTERS,), identity.made_at)
    return bound


def client_host(host: str) -> str:
    """The host that clients on this machine use."""
    return "127.0.0.1" if host in WILDCARDS else host


def url_of(host: str, port: int) -> str:
    """The address that clients on this machine use."""
    host = client_host(host)
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        shown = host
    return f"https://{shown}:{port}"
