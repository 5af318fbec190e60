"""The bug zoo."""
