"""The API over HTTP/1.1: `server.service` behind the paths and conventions of Kubernetes.

`connection` parses and limits, `routes` reads the path, `resources` makes it a request of `api.requests`, and the
reply bytes. The same code runs on real sockets and on the simulator's connections. It decides nothing about objects.
"""

from __future__ import annotations
