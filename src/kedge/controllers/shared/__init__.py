"""Modules that several controllers share: pods, ownership, slots, templates, draining, progress, node leases.

Nothing here is a controller, and nothing here imports one.
"""
