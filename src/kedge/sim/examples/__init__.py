"""Programs that show what the simulator finds."""
