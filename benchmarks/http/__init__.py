"""The API over HTTPS beside a bare server of the same protocol: `python -m benchmarks.http`."""
