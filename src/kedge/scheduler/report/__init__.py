"""The scheduler's output for people: events, conditions, policy status, explanations and attempt records."""
