"""Incidents of a running cluster: where processes send their records, and the one file that is made of them."""
