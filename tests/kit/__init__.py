"""Harnesses and helpers that tests of several layers share. No test module imports another test module."""
