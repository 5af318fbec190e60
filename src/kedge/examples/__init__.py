"""Example workloads that `kedge up --demo` runs: small programs that need nothing but Python."""
