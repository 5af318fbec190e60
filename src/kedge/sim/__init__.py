"""The simulator: a kernel for any asyncio program, and a cluster layer on top."""
