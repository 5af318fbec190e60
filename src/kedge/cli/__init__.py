"""The command line: composition root of production."""
