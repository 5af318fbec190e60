"""The facts about a machine, read from its files."""

from __future__ import annotations

import os
from pathlib import Path

from kedge.agent.process.system_info import read_system_info


def test_the_files_of_a_machine_give_its_identity_and_its_distribution(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef\n")
    (tmp_path / "etc/os-release").write_text('NAME="Small"\n# a comment\nPRETTY_NAME="Small Linux 3"\n')
    found = read_system_info(tmp_path)
    assert (found.machine_id, found.system_uuid) == ("0123456789abcdef", "0123456789abcdef")
    assert (found.os_image, found.kernel_version) == ("Small Linux 3", os.uname().release)
    assert found.operating_system == "linux"
    assert found.architecture not in ("", "x86_64", "aarch64"), "the name is that of Kubernetes"
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_uuid").write_text("A-B-C\n")
    assert read_system_info(tmp_path).system_uuid == "A-B-C"


def test_a_machine_without_those_files_is_described_by_its_kernel(tmp_path: Path) -> None:
    found = read_system_info(tmp_path)
    assert (found.machine_id, found.system_uuid, found.os_image) == ("", "", os.uname().sysname)
    assert found.container_runtime_version.startswith("kedge://")
