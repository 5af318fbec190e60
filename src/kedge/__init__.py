"""Kedge: a distributed scheduler and control plane that can be rewound."""

__version__ = "0.1.0"
