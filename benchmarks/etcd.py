"""The bare peer of the etcd backend: puts, over one gRPC channel, with nothing around them."""

from __future__ import annotations

import asyncio
import time

import grpc

from kedge.store.etcd import messages as m

_PUT = "/etcdserverpb.KV/Put"


async def bare_put_rate(endpoint: str, prefix: str, value: bytes, count: int, concurrency: int) -> float:
    """Puts a second of fresh keys, `concurrency` at once."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        put = channel.unary_unary(_PUT, request_serializer=m.PutRequest.SerializeToString, response_deserializer=bytes)
        numbers = iter(range(count))

        async def worker() -> None:
            for n in numbers:
                await put(m.PutRequest(key=f"{prefix}{n}".encode(), value=value))

        await put(m.PutRequest(key=prefix.encode(), value=b""))  # connect first
        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker())
        return count / (time.perf_counter() - started)
