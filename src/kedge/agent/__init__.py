"""The agent: what runs on a node. `core` decides; a driver, which is passed in, starts and stops processes."""
