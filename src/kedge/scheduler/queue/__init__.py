"""Pods without a node: their order, their backoff, and the events that may unblock them."""
