"""Headers and members that kedge's own clients and servers add to the Kubernetes API.

A Kubernetes server ignores the headers, and a Kubernetes client never sees the members: they are sent only on
request. `docs/wire.md` describes them.
"""

from __future__ import annotations

from typing import Final

OPERATION: Final = b"kedge-operation"
"""Of a write: its operation id. A repeat within the window gets the first outcome."""
DECISION: Final = b"kedge-decision"
"""Of a request: the decision that led to it."""
FENCE: Final = b"kedge-fence"
"""Of a write: `KIND/NAMESPACE/NAME@REVISION`, the token of a leader."""
UNRECORDED: Final = b"kedge-unrecorded"
"""Of a write: keep no record of its operation id."""
ORIGINS: Final = b"kedge-origins"
"""Of a read: send the origin of each version too. A reply that has it repeats the header."""
CREATED: Final = b"kedge-created"
"""Of a reply with one object: the revision that created it."""
REMOVED: Final = b"kedge-removed"
"""Of the reply to a delete: the object is gone, and the body is its last state."""
ORIGINS_MEMBER: Final = "kedge"
"""In a list `[created, operation, decision]` of each item, in an event those of its object."""
