"""`--audit-policy` and `--audit-strict`: the requests that an API server logs, and its reaction when it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.state_folder import AUDIT
from kedge.errors import Terminal

if TYPE_CHECKING:
    from kedge.env import Env
    from kedge.server.audit import Auditor

OFF, WRITES = "off", "writes"


@dataclass(frozen=True, slots=True)
class AuditChoice:
    """The audit log as the options name it."""

    policy: str = OFF
    """`off`, `writes`, or the path of a policy."""
    strict: bool = False

    def arguments(self) -> list[str]:
        """The options, for another process."""
        return ["--audit-policy", self.policy, *(["--audit-strict"] if self.strict else [])]


def audit_options(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a verb, which gets them as one `AuditChoice` named `audit`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_choice(*arguments: Any, audit_policy: str, audit_strict: bool, **others: Any) -> None:
            command(*arguments, audit=AuditChoice(audit_policy, audit_strict), **others)

        policy = click.option(
            "--audit-policy",
            metavar="FILE",
            default=default,
            show_default=True,
            help="Audit policy: the requests to log in the folder audit of the state. It is a file, or `writes` (the"
            " metadata of all writes), or `off`.",
        )
        strict = click.option(
            "--audit-strict", is_flag=True, help="Refuse writes with 503 while the audit log cannot take them."
        )
        return policy(strict(with_choice))

    return decorate


@asynccontextmanager
async def open_audit(choice: AuditChoice, state: Path, env: Env) -> AsyncIterator[Auditor | None]:
    """The auditor of a server; None if auditing is off. At the end every entry is on disk.

    Raises:
        Terminal: the policy cannot be read, or the log cannot be made.
    """
    if choice.policy == OFF:
        yield None
        return
    from kedge.server.audit import WRITES_POLICY, AuditLog, Auditor, parse_policy

    policy = WRITES_POLICY if choice.policy == WRITES else parse_policy(_read(Path(choice.policy)), choice.policy)
    log = AuditLog(state / AUDIT, env)
    log.start()
    try:
        yield Auditor(policy, log, env, strict=choice.strict)
    finally:
        await log.close()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Terminal(f"the audit policy {path} cannot be read: {error}: name a file, {WRITES} or {OFF}") from error
