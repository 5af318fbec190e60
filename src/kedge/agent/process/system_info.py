"""The hardware and software of this machine, for the `nodeInfo` of its node. `agent.core` writes it to the API."""

from __future__ import annotations

import os
from pathlib import Path

import kedge
from kedge.api.views import NodeSystemInfo

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""The names that Kubernetes uses; those of other machines are the same in both."""


def read_system_info(root: Path) -> NodeSystemInfo:
    """The facts about the machine whose files are below `root`. A file that cannot be read leaves its field empty."""
    system = os.uname()
    machine_id = _text(root / "etc/machine-id")
    return NodeSystemInfo(
        machine_id=machine_id,
        system_uuid=_text(root / "sys/class/dmi/id/product_uuid") or machine_id,  # readable by root alone
        kernel_version=system.release,
        os_image=_os_image(_text(root / "etc/os-release")) or system.sysname,
        container_runtime_version=f"kedge://{kedge.__version__}",
        operating_system=system.sysname.lower(),
        architecture=_ARCHITECTURES.get(system.machine, system.machine),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _os_image(release: str) -> str:
    """The name of the distribution in the text of an `os-release` file."""
    values = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    return values.get("PRETTY_NAME", values.get("NAME", "")).strip("\"'")
