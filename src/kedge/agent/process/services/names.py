"""Names of Services for processes: environment variables, and a hosts file for each namespace.

Variables are those of the Services that exist when a process starts. The hosts file follows changes: it is written in
place, because a mount of a file shows the file itself and not its name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kedge.agent.process.services.plan import ServiceName, ServicePortPlan

_LOG = logging.getLogger(__name__)
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9_]")
_LOCAL = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def service_variables(
    namespace: str, plans: Iterable[ServicePortPlan], addresses: Mapping[ServiceName, str]
) -> dict[str, str]:
    """The variables of a namespace's Services, as Kubernetes names them: FEATURES_SERVICE_HOST and so on."""
    found: dict[str, str] = {}
    for plan in plans:
        address = addresses.get(plan.service)
        if plan.service.namespace != namespace or address is None:
            continue
        prefix = _NOT_IN_A_NAME.sub("_", plan.service.name.upper())
        found[f"{prefix}_SERVICE_HOST"] = address
        found.setdefault(f"{prefix}_SERVICE_PORT", str(plan.port))
        if plan.port_name:
            found[f"{prefix}_SERVICE_PORT_{_NOT_IN_A_NAME.sub('_', plan.port_name.upper())}"] = str(plan.port)
    return found


def hosts_text(namespace: str, addresses: Mapping[ServiceName, str]) -> str:
    """The hosts file of a namespace: short names of its own Services, full names of all."""
    lines = []
    for service, address in sorted(addresses.items()):
        long = f"{service.name}.{service.namespace}"
        names = [f"{long}.svc.cluster.local", f"{long}.svc", long]
        if service.namespace == namespace:
            names.insert(0, service.name)
        lines.append(f"{address}\t{' '.join(names)}\n")
    return _LOCAL + "".join(lines)


class HostsFiles:
    """The hosts files of one node, one for each namespace that has had a process."""

    def __init__(self, folder: Path, machine_hosts: Path = Path("/etc/hosts")) -> None:
        """Lines of `machine_hosts` come last, so that names of the machine are known too."""
        self._folder = folder / "hosts"
        self._machine_hosts = machine_hosts

    def path(self, namespace: str) -> Path:
        return self._folder / namespace

    def namespaces(self) -> Sequence[str]:
        try:
            return sorted(each.name for each in self._folder.iterdir())
        except FileNotFoundError:
            return ()

    def write(self, namespace: str, addresses: Mapping[ServiceName, str]) -> None:
        """Bring one file up to date. It is small, so that a reader hardly ever meets half of it."""
        path = self.path(namespace)
        text = (hosts_text(namespace, addresses) + self._of_machine()).encode()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.read(descriptor, len(text) + 1) != text:
                    os.pwrite(descriptor, text, 0)
                    os.ftruncate(descriptor, len(text))
            finally:
                os.close(descriptor)
        except OSError as error:
            _LOG.warning("%s is not written (%s): processes may not find Services by name", path, error)

    def _of_machine(self) -> str:
        try:
            return self._machine_hosts.read_text(errors="replace")
        except OSError:
            return ""
