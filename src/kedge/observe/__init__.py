"""Records of what was decided and why, and their readers."""
