"""Example programs with bugs that the simulator finds."""
