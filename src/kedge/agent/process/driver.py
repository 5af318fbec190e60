"""The process driver: runs containers as plain processes of this machine, through the keeper of the node.

There are no images and no pod network: an image is only a label, and each pod gets a loopback address of its own. The
keeper's records are the truth about what runs, so an agent that starts again finds everything there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kedge.agent.core.driver import (
    CannotResize,
    CannotStart,
    Consumption,
    ContainerProcess,
    ContainerSetup,
    Identity,
    KeptPod,
    NodeCondition,
)
from kedge.agent.process.channel import KeeperChannel, MissingOperation, may_hold_processes
from kedge.agent.process.exec import ExecProcess
from kedge.agent.process.keeper_client import clock_s
from kedge.agent.process.log_files import log_path, marks_path
from kedge.agent.process.logs import NodeLogs
from kedge.agent.process.port_probes import probe_port
from kedge.agent.process.record_files import ANY, port_conflict
from kedge.agent.process.services import ServiceProxies
from kedge.agent.process.volumes import make_volumes, remove_folder, unmount_volumes, update_files
from kedge.api.views import Container, LifecycleHook, PodView, Probe, ResourceRequirements
from kedge.api.views.schema import dec_hook
from kedge.errors import NotFound, OutcomeUnknown, Unavailable
from kedge.limits import Limits

_MESSAGE_PATH = "/dev/termination-log"
_MESSAGE_VARIABLE = "KEDGE_TERMINATION_LOG"
"""The path of the file with the termination message, for a machine on which it cannot be mounted."""
_SHUTDOWN_S = 10.0
"""A killed process is gone in milliseconds; a machine may be busy."""
_SHUTDOWNS = 3
"""A keeper that is killed while it shuts down leaves processes to the next one."""
_TRIES = 3
_TRY_AGAIN_S = 0.02
_LIMITS = Limits()
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")


class ProcessDriver:
    """Implements `agent.core.Driver` with real processes."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str],
        limits: Limits = _LIMITS,
        services: ServiceProxies | None = None,
    ) -> None:
        """`environment` is the agent's own, of which a few variables are passed on. `services` has the names of
        Services for processes."""
        self._limits = limits
        self._folder = folder = folder.absolute()  # the keeper has another working directory
        self._base = {name: environment[name] for name in _PASSED_ON if name in environment}
        self._subnet = loopback_subnet(folder)
        self._addresses: dict[str, str] = {}
        self._reserved_until_s: dict[str, float] = {}
        self._on_change: Callable[[str], None] = lambda _: None
        self._channel = KeeperChannel(folder, self._changed, limits)
        self._services = services

    async def pull(self, image: str) -> None:
        """Nothing is fetched: the program is on this machine, or the start fails."""

    async def prepare(self, pod: PodView) -> str:
        """Choose the address of the pod. It is recorded with the first process."""
        return await self._address_for(pod.uid)

    async def service_variables(self, pod: PodView) -> Mapping[str, str]:
        if self._services is None or pod.spec.enable_service_links is False:
            return {}
        await self._services.wait_synced()
        return self._services.variables(pod.namespace)

    async def start(
        self, identity: Identity, pod: PodView, container: Container, setup: ContainerSetup, *, keep_s: float | None
    ) -> None:
        if not setup.argv:
            raise CannotStart(
                f"container {container.name} has no command: kedge runs processes, not images",
                "CreateContainerConfigError",
            )
        folder = self._pod_folder(pod.namespace, pod.name, identity.pod_uid)
        log = log_path(folder, container.name, identity.attempt)
        self._drop_logs(_made(log.parent), identity.attempt)
        binds, variables = make_volumes(folder, setup)
        if hosts := self._hosts_file(pod):
            binds.append((hosts, "/etc/hosts", True))
        message = _made(folder / "messages") / f"{container.name}-{identity.attempt}"
        message.touch()
        variables[_MESSAGE_VARIABLE] = str(message)
        binds.append((str(message), container.termination_message_path or _MESSAGE_PATH, False))
        record = {
            "id": record_id(identity),
            "identity": list(identity),
            "namespace": pod.namespace,
            "pod": pod.name,
            "address": await self._address_for(identity.pod_uid),
            "host_ports": [
                [each.protocol, each.host_ip or ANY, each.host_port] for each in container.ports if each.host_port
            ],
            "ports": {port.name: port.container_port for port in container.ports if port.name},
            "argv": list(setup.argv),
            "env": {**self._base, **variables, **setup.env},
            "cwd": container.working_dir or str(_made(folder / "work")),
            "log": str(log),
            "log_bytes_max": self._limits.agent_log_bytes_max,
            "mounts": binds,
            "limits": _group_limits(container),
            "resources": msgspec.to_builtins(container.resources, enc_hook=str),
            "termination": [str(message), container.termination_message_policy],
        }
        if conflict := port_conflict(await self._records(), record):
            raise CannotStart(conflict, "HostPortConflict")
        await self._call_again("start", record=record, keep_until_s=None if keep_s is None else clock_s() + keep_s)

    async def update_volumes(self, pod: PodView, setup: ContainerSetup) -> None:
        update_files(self._pod_folder(pod.namespace, pod.name, pod.uid), setup)

    async def resize(self, identity: Identity, container: Container) -> None:
        resources = msgspec.to_builtins(container.resources, enc_hook=str)
        limits = _group_limits(container)
        try:
            await self._call_again("resize", process=record_id(identity), limits=limits, resources=resources)
        except Unavailable as error:
            raise CannotResize(error.message) from error

    async def keep(self, identity: Identity, for_s: float) -> None:
        await self._call_again("keep", process=record_id(identity), until_s=clock_s() + for_s)

    async def stop(self, identity: Identity, *, grace_s: float, cause: str = "") -> None:
        await self._call_again("stop", process=record_id(identity), grace_s=grace_s, cause=cause)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(_process(each) for each in await self._records())

    async def forget(self, identity: Identity) -> None:
        await self._call_again("forget", process=record_id(identity))

    async def consumption(self) -> Mapping[Identity, Consumption]:
        used = await self._call_again("consumption")
        every = {each["id"]: Identity(*each["identity"]) for each in await self._records() if not each["ended"]}
        return {
            every[process]: Consumption(cpu_s=found["cpu_s"], memory_bytes=found["bytes"])
            for process, found in used.items()
            if process in every
        }

    @property
    def logs(self) -> NodeLogs:
        """The logs of the node's containers."""
        return NodeLogs(self._folder)

    async def remove(self, pod_uid: str) -> None:
        if any(each["identity"][0] == pod_uid for each in await self._records()):
            return
        for kept in await self.kept_pods():
            if kept.uid == pod_uid:
                remove_folder(self._pod_folder(kept.namespace, kept.name, kept.uid))
        self._addresses.pop(pod_uid, None)
        self._reserved_until_s.pop(pod_uid, None)

    async def kept_pods(self) -> Sequence[KeptPod]:
        found = []
        for folder in sorted((self._folder / "pods").glob("[!.]*")):
            namespace, _, rest = folder.name.partition("_")
            name, _, uid = rest.partition("_")
            if uid:
                found.append(KeptPod(uid, namespace, name))
        return found

    async def conditions(self) -> tuple[NodeCondition, ...]:
        """The abilities of this machine, for the conditions of its node."""
        try:
            return node_conditions(await self._call_again("abilities"))
        except MissingOperation:
            return node_conditions({})

    def address(self, pod_uid: str) -> str:
        return self._addresses.get(pod_uid, "")

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change

    async def exec(self, pod_uid: str, container: str, argv: Sequence[str], *, terminal: bool) -> ExecProcess:
        """Run a command in the environment of a container, with streams of its own.

        Raises:
            NotFound: the container does not run here.
            CommandFailed: the program cannot be executed.
        """
        running = [
            each
            for each in await self._records()
            if not each["ended"] and each["identity"][0] == pod_uid and each["identity"][1] == container
        ]
        if not running:
            raise NotFound(f"container {container} does not run on this node: look at the status of its pod")
        return await ExecProcess.start(self._channel, running[-1]["id"], argv, terminal=terminal)

    async def pid_of(self, pod_uid: str) -> int:
        """The process that runs for a pod, for people and demonstrations; 0 if none does."""
        running = [each for each in await self._records() if each["identity"][0] == pod_uid and not each["ended"]]
        return int(running[0]["pid"]) if running else 0

    async def shutdown(self, *, grace_s: float) -> None:
        """Stop every process of the node and its keeper. Returns when nothing of it runs.

        Raises:
            Unavailable: something still runs after the grace and a while: look at the keeper's log.
        """
        for _ in range(_SHUTDOWNS):
            with suppress(OutcomeUnknown):  # the keeper may end before its reply is read
                await self._channel.call("shutdown", grace_s=grace_s)
            await self._channel.wait_ended(within_s=grace_s + _SHUTDOWN_S)
            if not may_hold_processes(self._folder):
                unmount_volumes(self._folder / "pods")
                return
        raise Unavailable(f"processes of {self._folder} may still run: see {self._folder / 'keeper.log'}")

    async def close(self) -> None:
        """Disconnect from the keeper; its processes keep running."""
        await self._channel.close()

    # -- probes and hooks --------------------------------------------------------------------------

    async def run_hook(self, identity: Identity, hook: LifecycleHook, *, within_s: float) -> str:
        if hook.exec is not None:
            argv = list(hook.exec.command)
            try:
                code = await self._channel.call(
                    "run", process=record_id(identity), bounded=False, argv=argv, timeout_s=within_s
                )
            except Unavailable as error:
                return str(error)
            return "" if code == 0 else f"the command ended with exit code {code}"
        probe = Probe(http_get=hook.http_get, tcp_socket=hook.tcp_socket)
        return await self.probe(identity, probe)

    async def probe(self, identity: Identity, probe: Probe) -> str:
        if probe.exec is not None:
            timeout_s = float(max(1, probe.timeout_seconds))
            argv = list(probe.exec.command)
            try:
                code = await self._channel.call("run", process=record_id(identity), argv=argv, timeout_s=timeout_s)
            except Unavailable as error:  # it does not run
                return str(error)
            return "" if code == 0 else f"the command ended with exit code {code}"
        record = await self._record(identity)
        if record is None or record["ended"]:
            return "the process does not run"
        try:
            return await probe_port(probe, record)
        except (OSError, ValueError) as error:
            return str(error)

    # -- the keeper --------------------------------------------------------------------------------

    async def _call_again(self, op: str, **parts: Any) -> Any:
        """Send a request, and repeat it after a broken connection: every request may be repeated.

        A keeper that is being killed still accepts connections for a moment, so one more try is not enough.
        """
        for _ in range(_TRIES):
            with suppress(OutcomeUnknown):
                return await self._channel.call(op, **parts)
            await asyncio.sleep(_TRY_AGAIN_S)
        return await self._channel.call(op, **parts)

    async def _records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = await self._call_again("list")
        for each in records:
            self._addresses[each["identity"][0]] = each["address"]
        return records

    async def _record(self, identity: Identity) -> dict[str, Any] | None:
        wanted = record_id(identity)
        return next((each for each in await self._records() if each["id"] == wanted), None)

    async def _address_for(self, pod_uid: str) -> str:
        """The pod's address: the one its processes have, or the first of this node that no pod has."""
        records = await self._records()
        known = self._addresses.get(pod_uid)
        if known is not None:
            return known
        held = {each["identity"][0] for each in records}
        # A pod has its address before its first process: without the reservation the next pod would get the same one.
        now_s = clock_s()
        for uid in [uid for uid in self._addresses if uid not in held and now_s >= self._reserved_until_s.get(uid, 0)]:
            del self._addresses[uid]
            self._reserved_until_s.pop(uid, None)
        taken = set(self._addresses.values())
        free = (f"{self._subnet}.{low}" for low in range(1, 255))
        found = next((each for each in free if each not in taken), "")
        if not found:
            raise Unavailable(f"every address of {self._subnet} is taken by a pod: wait until one has ended")
        self._addresses[pod_uid] = found
        self._reserved_until_s[pod_uid] = now_s + self._limits.agent_address_s
        return found

    def _pod_folder(self, namespace: str, name: str, uid: str) -> Path:
        return self._folder / "pods" / f"{namespace}_{name}_{uid}"

    def _drop_logs(self, folder: Path, attempt: int) -> None:
        """Remove the logs of a container's processes that are too old to be read, before `attempt` gets one."""
        for each in folder.glob("*.log"):
            if each.stem.isdigit() and int(each.stem) <= attempt - self._limits.agent_logs_max:
                marks_path(each).unlink(missing_ok=True)
                each.unlink(missing_ok=True)

    def _hosts_file(self, pod: PodView) -> str:
        """The hosts file for a process of a pod; empty if it has that of the machine."""
        if self._services is None or pod.spec.host_network:
            return ""
        return str(self._services.hosts_file(pod.namespace))

    def _changed(self, pod_uid: str) -> None:
        self._on_change(pod_uid)


def loopback_subnet(folder: Path) -> str:
    """The first three numbers of a node's pod addresses: its own on this machine, and the same after every restart."""
    digest = hashlib.sha256(str(folder.resolve()).encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}"


def record_id(identity: Identity) -> str:
    """A file name that is the same for the same identity, and for no other."""
    digest = hashlib.sha256("\0".join(str(part) for part in identity).encode()).hexdigest()[:16]
    return f"{identity.pod_uid[:8]}-{identity.attempt}-{digest}"


def _process(record: Mapping[str, Any]) -> ContainerProcess:
    resources = record.get("resources")
    return ContainerProcess(
        identity=Identity(*record["identity"]),
        namespace=record["namespace"],
        pod=record["pod"],
        running=not record["ended"],
        started_at=_moment(record["started"]),
        ended_at=_moment(record["ended"]) if record["ended"] else None,
        exit_code=record["exit_code"],
        reason=record["reason"],
        message=record["message"],
        since_s=record["since_s"],
        resources=None if resources is None else msgspec.convert(resources, ResourceRequirements, dec_hook=dec_hook),
        stopping=record.get("stopping", False),
    )


def _group_limits(container: Container) -> list[int | None]:
    """The limits of a container for `cgroups.GroupLimits`."""
    memory, cpu = (container.resources.limits.get(name) for name in ("memory", "cpu"))
    return [memory.value if memory is not None else None, cpu.milli if cpu is not None else None]


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(float(text), UTC)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made: {error}: free the disk, or make it writable") from error
    return folder


def node_conditions(abilities: Mapping[str, bool]) -> tuple[NodeCondition, ...]:
    """Conditions about limits and mounts: true where the machine can, false with the consequence where it cannot.

    An older keeper reports fewer abilities than this agent knows, or none.
    """
    if not abilities.keys() >= {"memory", "cpu", "mounts"}:
        message = "not known: the keeper is older than the agent; drain the node and restart the agent to replace it"
        return tuple(
            NodeCondition(each, status=False, reason="KeeperOutdated", message=message)
            for each in ("ResourceLimits", "VolumeMounts")
        )
    limits = [name for name in ("memory", "cpu") if not abilities[name]]
    return (
        NodeCondition(
            "ResourceLimits",
            not limits,
            "CgroupsUnavailable" if limits else "Cgroups",
            f"limits of {' and '.join(limits)} are not enforced: no control group is writable"
            if limits
            else "limits of memory and cpu are enforced by control groups",
        ),
        NodeCondition(
            "VolumeMounts",
            abilities["mounts"],
            "MountNamespaces" if abilities["mounts"] else "NoMountNamespace",
            "volumes are mounted at their mountPath, in a mount namespace of each container"
            if abilities["mounts"]
            else "volumes are not mounted at their mountPath: the variable KEDGE_VOLUME_NAME has the path of each;"
            " volumes in memory are folders on disk",
        ),
    )
