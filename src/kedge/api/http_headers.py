"""Headers and members that kedge's own clients and servers add to the Kubernetes API.

A Kubernetes server ignores the headers, and a Kubernetes client never sees the members: they are sent only on
request. `docs/wire.md` describes them.
"""

from __future__ import annotations

from typing import Final

OPERATION: Final = b"kedge-operation"
"""The operation id of a write. A repeat within the window gets the first outcome."""
DECISION: Final = b"kedge-decision"
"""The decision that led to a request."""
FENCE: Final = b"kedge-fence"
"""The fence of a write, which is the token of a leader: `KIND/NAMESPACE/NAME@REVISION`."""
ACTING_AS: Final = b"Impersonate-User"
"""Kubernetes' header for a request as another user."""
UNRECORDED: Final = b"kedge-unrecorded"
"""Marks a write whose operation id is not recorded."""
ORIGINS: Final = b"kedge-origins"
"""Requests the origin of each version that is read. A reply that has it repeats the header."""
CREATED: Final = b"kedge-created"
"""The revision that created the object of the reply."""
REMOVED: Final = b"kedge-removed"
"""Marks the reply to a delete after which the object is gone; the body is its last state."""
CALLER: Final = b"kedge-caller"
"""The user that wrote the version in the reply, percent-encoded. Only a server sends it."""
GROUPS: Final = b"kedge-groups"
"""The groups of that user, each percent-encoded, with commas between them. Only a server sends it."""
ORIGINS_MEMBER: Final = "kedge"
"""In a list `[created, operation, decision, caller, groups]` of each item, in an event those of its object."""
