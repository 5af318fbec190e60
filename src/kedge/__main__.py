"""`python -m kedge`: the command line."""

from kedge.cli import main

main(prog_name="kedge")
