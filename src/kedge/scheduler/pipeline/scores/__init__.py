"""Scores, a file for each subject. Their order and default weights are in `pipeline.plugins`."""
