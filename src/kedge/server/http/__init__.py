"""The wire: HTTP/1.1 in front of `server.service`, in the dialect of the Kubernetes API.

`connection` parses and limits, `routes` reads the path, `handlers` turns it into one of `api.requests` and a reply into
bytes. The same code runs on real sockets and on the simulator's connections. It decides nothing about objects.
"""

from __future__ import annotations
