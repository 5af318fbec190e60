"""Fast paths of the wire, for the requests that a busy cluster makes most.

As in `server.service.fast`, the plain path is the definition, and a fast path answers None on any doubt.
`tests/unit/http/test_fast_get.py` and `test_plain_bodies.py` hold each equal to the plain path.
"""
