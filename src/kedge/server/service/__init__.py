"""What the API means, with no transport around it."""
