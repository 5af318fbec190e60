"""Filters, a file for each subject. Their order is in `pipeline.plugins`."""
