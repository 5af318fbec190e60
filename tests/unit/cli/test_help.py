"""`kedge --help` is instant: it imports click and nothing that a verb needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "asyncio",
    "cryptography",
    "msgspec",
    "numpy",
    "rich",
    "sqlite3",
    "ssl",
    "yaml",
    "kedge.api",
    "kedge.sim",
    "kedge.server",
}


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nbefore = set(sys.modules)\nfrom kedge.cli import main\n"
        "done = CliRunner().invoke(main, ['--help'])\nassert done.exit_code == 0 and 'Commands' in done.output\n"
        "print(*(set(sys.modules) - before), *(name for name in ('asyncio', 'numpy') if name in before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_help_is_printed_by_the_installed_command_without_heavy_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kedge", "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "kedge.cli" in imported
    assert not HEAVY & imported
