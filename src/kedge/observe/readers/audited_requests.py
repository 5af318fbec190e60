"""Requests of the audit log as the views show them: changes by people, and requests that were refused. Pure.

`cli.audit_evidence` reads the log. A view shows such a request only where no version and no decision shows it already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kedge.api.access import CONTROLLERS, NODES, SCHEDULERS
from kedge.keys import NO_REVISION, NODE_USER_PREFIX, Key, Revision
from kedge.observe.records import Decision

SHOWN_REFUSALS: Final = frozenset({403, 409, 422})
"""Codes of refusals that are about the object. Others are about the server, such as 429 and 503."""
_COMPONENTS: Final = frozenset({CONTROLLERS, NODES, SCHEDULERS})
_SYSTEM: Final = "system:"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRequest:
    """One write in the audit log, or one that was refused."""

    at: datetime
    user: str
    """The user that the request acts as."""
    by: str = ""
    """The user that authentication established, if it impersonates `user`."""
    groups: tuple[str, ...] = ()
    verb: str
    subresource: str = ""
    key: Key
    code: int
    reason: str = ""
    message: str = ""
    decision: str = ""
    revision_before: Revision = NO_REVISION
    revision: Revision = NO_REVISION
    """The version that it wrote; 0 if it was refused."""

    @property
    def is_refused(self) -> bool:
        return self.code in SHOWN_REFUSALS

    @property
    def is_by_person(self) -> bool:
        """Whether a person sent it: components have decisions, a group of their own, or a name of the system."""
        return not (self.decision or self.user.startswith(_SYSTEM) or _COMPONENTS.intersection(self.groups))

    @property
    def changed(self) -> bool:
        """Whether it wrote a version."""
        return bool(self.revision) and self.revision != self.revision_before

    @property
    def actor(self) -> str:
        """The controller of its decision, or the user."""
        return self.decision.partition(":")[0] or self.user.removeprefix(NODE_USER_PREFIX)

    @property
    def shown_user(self) -> str:
        return f"{self.user} (by {self.by})" if self.by else self.user

    def text(self) -> str:
        """The request, and of a refused one the reason."""
        what = f"{self.verb} {self.subresource}".rstrip() + f" {self.key}"
        by = f" by {self.by} as {self.user}" if self.by and self.is_by_person else ""
        if not self.is_refused:
            return f"{what}{by}"
        why = f": {self.message}" if self.message else ""
        return f"{what}{by} was refused: {self.code} {self.reason}{why}"


def unshown(
    requests: Iterable[AuditedRequest],
    keys: Collection[Key],
    revisions: Collection[Revision],
    decided: Sequence[Decision],
) -> Iterator[AuditedRequest]:
    """The requests about `keys` that a timeline lacks: neither a version of it nor a decision of it shows them."""
    known = {each.id for each in decided}
    for each in requests:
        if each.key not in keys or each.decision in known:
            continue
        if each.is_refused or (each.is_by_person and each.changed and each.revision not in revisions):
            yield each


def last_change(requests: Iterable[AuditedRequest], key: Key) -> AuditedRequest | None:
    """The newest change of an object by a person."""
    found = [each for each in requests if each.key == key and each.is_by_person and each.changed]
    return max(found, key=lambda each: (each.revision, each.at), default=None)


def last_refusal(requests: Iterable[AuditedRequest], key: Key) -> AuditedRequest | None:
    """The newest request of a person about an object that was refused."""
    found = [each for each in requests if each.key == key and each.is_by_person and each.is_refused]
    return max(found, key=lambda each: each.at, default=None)
