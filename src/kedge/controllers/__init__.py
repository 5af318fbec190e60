"""The controllers: each a pure plan on frozen views, with a thin shell that carries it out through a `Context`."""
