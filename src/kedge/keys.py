"""Names of a stored object (`Key`), of a point in a store's history (`Revision`) and of a write's request (`Origin`).

Every layer uses them. This module knows nothing of what is stored under a key; `api.kinds` has the kinds.
"""

from __future__ import annotations

from typing import NamedTuple

Revision = int
"""A point in a store's history. Strictly increasing, one a commit; gaps are allowed."""

NO_REVISION: Revision = 0
"""The revision before any commit: no object ever has it."""


class Key(NamedTuple):
    """Kind, namespace and name. Keys sort as tuples, and every backend lists in that order."""

    kind: str
    """Kind and group, as in `Pod` or `Deployment.apps`: kinds of two groups may share a name."""
    namespace: str
    """Empty for an object that belongs to no namespace."""
    name: str

    def __str__(self) -> str:
        if self.namespace:
            return f"{self.kind}/{self.namespace}/{self.name}"
        return f"{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read what `str` wrote."""
        kind, _, rest = text.partition("/")
        namespace, slash, name = rest.partition("/")
        return cls(kind, namespace, name) if slash else cls(kind, "", namespace)


NODE_USER_PREFIX = "system:node:"
"""The user of an agent is this and the name of its node, as in Kubernetes."""
AGENT_PREFIX = "agent-"
"""The decisions of an agent begin with this and the name of its node."""


class Origin(NamedTuple):
    """The request behind a version. Stored beside the object, outside its bytes."""

    operation: str = ""
    """The operation id of the request: a retry recognises its own earlier attempt by it."""
    decision: str = ""
    """The decision record that led to the request, so that the writer of any version is known."""
    caller: str = ""
    """The user that the server authenticated, or the component of a write in process: so every write has a name."""
    groups: tuple[str, ...] = ()
    """The groups of that user, as the server knew them; without `system:authenticated`, which every user has."""

    @property
    def writer(self) -> str:
        """The controller behind the decision, whose id begins with its name; else the agent or user; else empty."""
        if self.decision:
            return self.decision.partition(":")[0]
        node = self.caller.removeprefix(NODE_USER_PREFIX)
        return self.caller if node == self.caller else f"{AGENT_PREFIX}{node}"


NO_ORIGIN = Origin()


class Fence(NamedTuple):
    """A leader's token: the revision at which its lease's fence key was written."""

    key: Key
    revision: Revision


FENCE = "Fence.kedge.dev"
"""The kind of fence keys. They are internal to store and service, not objects of the API."""


def fence_key(lease: Key) -> Key:
    """The key that is written when `lease` begins a new term, and only then: renewals never write it."""
    return Key(FENCE, lease.namespace, lease.name)
