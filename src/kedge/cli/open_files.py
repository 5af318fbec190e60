"""The bound of the kernel on open files of a process: a connection needs one."""

from __future__ import annotations

import resource

from kedge.limits import Limits

_OTHER_FILES = 512
"""Files of a server besides its connections: the store, logs, streams to agents."""


def raise_open_files(limits: Limits) -> None:
    """Raise the soft limit, so that `http_connections_max` is reached first; the hard one stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.http_connections_max + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
