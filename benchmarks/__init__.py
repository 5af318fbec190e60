"""Benchmarks: each prints a table and then one line of JSON, with its peers measured in the same run."""
