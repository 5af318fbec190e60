"""A whole cluster of real processes: three API servers on three etcd members, two schedulers, two controller processes,
three agents. Every link between servers and etcd, and between components and servers, goes through a proxy.

A `Part` is killed with SIGKILL and started again as an operator would. `Writer` is a client whose acknowledged writes
must all be there in the end.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.tcp_proxy import Proxy, proxy_to
from tests.etcd_server import EtcdServer, etcd_cluster, free_port, sound_etcd
from tests.tools import missing_tool

from kedge.api.kinds import KINDS
from kedge.api.requests import ListOptions, Patch, PatchType
from kedge.client.contract import Client
from kedge.client.http import FailoverTransport, read_kubeconfig, with_servers
from kedge.env import system_env
from kedge.errors import AlreadyExists, OperatingError, OutcomeUnknown
from kedge.keys import Key
from kedge.observe.records import CommitRecord

CONVERGE_S = 180.0
POD = KINDS.of_key_kind("Pod")
DEPLOYMENT = KINDS.of_key_kind("Deployment.apps")
CONFIG_MAP = KINDS.of_key_kind("ConfigMap")
WEB = Key("Deployment.apps", "default", "web")


@dataclass
class Part:
    """One process of the cluster, restarted with the same arguments."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kedge", *self.arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def check_running(self) -> None:
        """A part that ended by itself is a bug."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended by itself: {self.log.read_text()[-3000:]}"


@dataclass
class TortureCluster:
    """The processes, the links between them, and a client that is on no such link."""

    folder: Path
    etcd: list[EtcdServer]
    client: Client
    parts: dict[str, list[Part]]
    links: dict[str, list[Proxy]]
    """Proxies by link: `etcd` from servers to members, `server` from components to servers."""

    async def deploy(self, replicas: int, *, min_ready_s: int = 0) -> None:
        program = f"{self.locking('$POD_NAME')}; exec sleep 100000"
        body = deployment(program, replicas)
        body["spec"]["minReadySeconds"] = min_ready_s
        await self.client.create(DEPLOYMENT, body, namespace="default")
        await self.converged(1, replicas)

    async def roll(self, version: int, replicas: int) -> None:
        """Change the template and the replica count; every acknowledged change must hold in the end."""
        template = {"metadata": {"annotations": {"version": str(version)}}}
        body = {"spec": {"replicas": replicas, "template": template}}
        await retried(lambda: self.client.send(Patch(WEB, body, PatchType.MERGE)))

    async def converged(self, version: int, replicas: int) -> None:
        """Wait until the Deployment, its pods, their processes and the locks that these hold all agree."""
        why = "nothing was read"
        deadline_s = asyncio.get_running_loop().time() + CONVERGE_S
        while asyncio.get_running_loop().time() < deadline_s:
            with suppress(OperatingError, TimeoutError):
                why = await self._unsettled(version, replicas)
                if not why:
                    return
            await asyncio.sleep(0.3)
        raise AssertionError(f"not converged to version {version} in {CONVERGE_S} s: {why}\n{self.tails()}")

    async def is_rolling(self, version: int, replicas: int) -> bool:
        """Whether the rollout of a version is unfinished, as far as the API answers."""
        with suppress(OperatingError, TimeoutError):
            async with asyncio.timeout(5):
                return bool(await self._unsettled(version, replicas))
        return False

    async def _unsettled(self, version: int, replicas: int) -> str:
        found = await self.client.find(WEB)
        assert found is not None, "the Deployment is gone"
        shown = found.edit()
        status = shown.get("status", {})
        if status.get("observedGeneration") != shown["metadata"]["generation"]:
            return "the Deployment's status is of an older generation"
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        if counts != [replicas] * 3:
            return f"replicas, updated, available are {counts}, not {replicas}"
        listed = (await self.client.list(POD, ListOptions(namespace="default"))).objects
        versions = [each.metadata.annotations.get("version") for each in listed]
        if versions != [str(version)] * replicas:
            return f"pods have versions {versions}"
        running = self.running_pods()
        names = sorted(each.key.name for each in listed)
        return "" if running == names else f"processes run for {running}, pods are {names}"

    def running_pods(self) -> list[str]:
        """Names of pods, one for each process that the keepers have on record and the kernel knows."""
        return sorted(str(record["pod"]) for record in self._running())

    def pids(self, uid: str) -> list[int]:
        """The live processes of one pod, by its uid, on all nodes."""
        return [int(record["pid"]) for record in self._running() if record["identity"][0] == uid]

    def _running(self) -> Iterator[dict[str, Any]]:
        for path in self.folder.glob("nodes/*/processes/*.json"):
            try:
                record = json.loads(path.read_text())
            except (FileNotFoundError, ValueError):
                continue  # being replaced
            if not record["ended"] and Path("/proc", str(record["pid"])).exists():
                yield record

    def locking(self, lock: str) -> str:
        """The beginning of a shell program that holds a lock while it runs; a second holder reports itself."""
        locks = self.folder / "locks"
        locks.mkdir(exist_ok=True)
        return f"exec 9>>{locks}/{lock}; flock -n 9 || echo {lock} $$ >>{self.folder}/doubles"

    def check_no_doubles(self) -> None:
        """A process that found another one of its pod running has written this file."""
        doubles = self.folder / "doubles"
        assert not doubles.exists(), f"two processes of one pod: {doubles.read_text()}\n{self.tails()}"

    def check_parts(self) -> None:
        for each in (part for parts in self.parts.values() for part in parts):
            each.check_running()

    def tails(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))


def check_complete(commits: Sequence[CommitRecord], acknowledged: Collection[str]) -> None:
    """The judges saw the run: in order, each commit once, and every acknowledged write."""
    revisions = [each.revision for each in commits]
    assert revisions == sorted(set(revisions))
    seen = {each.key.name for commit in commits for each in commit.written}
    missed = sorted(set(acknowledged) - seen)
    assert not missed, f"{len(missed)} of {len(acknowledged)} acknowledged writes were not judged: {missed[:5]}"


async def retried(request: Any, within_s: float = 60.0) -> Any:
    """Send a repeatable request until it is acknowledged."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            async with asyncio.timeout(20):
                return await request()
        except (OperatingError, TimeoutError):
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(0.2)


@dataclass
class Writer:
    """Creates ConfigMaps one after another, and remembers which the server acknowledged."""

    client: Client
    acknowledged: dict[str, str] = field(default_factory=dict)
    unknown: int = 0
    failed: int = 0

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            name, value = f"ack-{number:06}", str(number * 7)
            body = {"metadata": {"name": name}, "data": {"value": value}}
            try:
                await self.client.create(CONFIG_MAP, body, namespace="default")
                self.acknowledged[name] = value
            except (OutcomeUnknown, AlreadyExists):
                self.unknown += 1
            except OperatingError:
                self.failed += 1
            await asyncio.sleep(0.1)

    async def check_nothing_is_lost(self) -> None:
        listed = await retried(lambda: self.client.list(CONFIG_MAP, ListOptions(namespace="default")))
        found = {each.key.name: each.edit()["data"]["value"] for each in listed.objects if each.edit().get("data")}
        lost = {name: value for name, value in self.acknowledged.items() if found.get(name) != value}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged writes are lost: {lost}"


def deployment(program: str, replicas: int) -> dict[str, Any]:
    """Pods of one shell program."""
    container = {"name": "main", "image": "label-only", "command": ["sh", "-c", program]}
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"version": "1"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "minReadySeconds": 1,  # a rollout takes seconds, so that faults strike in the middle of it
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    }


@asynccontextmanager
async def torture_cluster(folder: Path) -> AsyncIterator[TortureCluster]:
    """Start every process and link, and end all of them, the workload's too."""
    binary = sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")
    async with AsyncExitStack() as stack:
        members = stack.enter_context(etcd_cluster(binary))
        to_etcd: list[Proxy] = []
        to_servers: list[Proxy] = []
        servers: list[Part] = []
        ports = [free_port() for _ in range(3)]
        for number, port in enumerate(ports):
            state = folder / f"server-{number}"
            state.mkdir(mode=0o700)
            if number:
                shutil.copy(folder / "server-0" / "ca.pem", state / "ca.pem")
            links = [await stack.enter_async_context(proxy_to(member.endpoint)) for member in members]
            to_etcd += links
            store = "etcd://" + ",".join(link.endpoint for link in links)
            listen = f"127.0.0.1:{port}"
            arguments = ("server", "--state", str(state), "--listen", listen, "--store", store)
            part = Part(f"server-{number}", arguments, folder / f"server-{number}.log")
            servers.append(part)
            part.start()
            await wait_for(state / "admin.kubeconfig", part)
            to_servers.append(await stack.enter_async_context(proxy_to(listen)))
        kubeconfig = folder / "server-0" / "admin.kubeconfig"
        urls = [option for link in to_servers for option in ("--server", f"https://{link.endpoint}")]
        parts = {"server": servers, **_components(folder, kubeconfig, urls)}
        for each in (part for name, group in parts.items() if name != "server" for part in group):
            each.start()
        env = system_env()
        direct = with_servers(read_kubeconfig(kubeconfig), [f"https://127.0.0.1:{port}" for port in ports])
        transport = FailoverTransport(direct, env)
        client = Client(transport, env, component="test")
        try:
            yield TortureCluster(folder, members, client, parts, {"etcd": to_etcd, "server": to_servers})
        finally:
            await transport.close()
            for each in (part for group in parts.values() for part in group):
                each.kill()
            down = [sys.executable, "-m", "kedge", "down", "--state", str(folder), "--grace", "0"]
            await asyncio.to_thread(subprocess.run, down, check=True, capture_output=True)


def _components(folder: Path, kubeconfig: Path, urls: list[str]) -> dict[str, list[Part]]:
    def part(name: str, verb: str, *more: str) -> Part:
        return Part(name, (verb, "--kubeconfig", str(kubeconfig), *urls, *more), folder / f"{name}.log")

    agents = [part(f"agent-{name}", "agent", "--name", name, "--state", str(folder / "nodes" / name)) for name in "abc"]
    return {
        "scheduler": [part(f"scheduler-{number}", "scheduler", "--state", str(folder)) for number in range(2)],
        "controllers": [part(f"controllers-{number}", "controllers", "--state", str(folder)) for number in range(2)],
        "agent": agents,
    }


async def wait_for(path: Path, part: Part) -> None:
    async with asyncio.timeout(90):
        while not (await asyncio.to_thread(path.exists)):
            part.check_running()
            await asyncio.sleep(0.1)
