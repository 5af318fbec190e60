"""The binding cycle: parallel binds, their outcomes, and nodes that refused a pod."""
