"""Fast paths of the service, for the requests that a busy cluster makes most.

The plain path is the definition. A fast path takes the cases it is sure of, with the same result, and answers None on
any doubt; it reports no errors. `tests/unit/service/test_fast_*.py` hold each equal to the plain path.
"""
