"""Filters and scores, in order, and their vectors for each shape of pods."""
