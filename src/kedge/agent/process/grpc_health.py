"""A gRPC health check without a gRPC library: one call of `grpc.health.v1.Health/Check` over plain HTTP/2.

Only what one unary call needs: literal headers without compression, one stream, and the first message of the reply.
A kubelet does the same: no TLS, and only the status SERVING passes.
"""

from __future__ import annotations

import asyncio
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM = 1
_FRAME_BYTES_MAX = 1 << 14
"""The largest frame that a server may send to a client that has not announced more."""
_FRAMES_MAX = 64
_SERVING = b"\x08\x01"  # field 1, value 1 of HealthCheckResponse


async def is_serving(host: str, port: int, service: str) -> bool:
    """Whether the server reports SERVING for a service; an empty name is the whole server.

    Raises:
        OSError: it cannot be reached.
        ValueError: its protocol is not HTTP/2, or the name is too long.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _request(f"{host}:{port}", service))
        await writer.drain()
        message = b""
        for _ in range(_FRAMES_MAX):
            kind, flags, stream, body = await _read_frame(reader)
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                writer.write(_frame(kind, _ACK, 0, body if kind == _PING else b""))
            elif kind in (_RST_STREAM, _GOAWAY):
                return False
            elif stream == _STREAM and kind == _DATA:
                message += body[1 : len(body) - body[0]] if flags & _PADDED else body
                if len(message) >= 5 and len(message) >= 5 + int.from_bytes(message[1:5], "big"):
                    return message[0] == 0 and message[5:] == _SERVING
            if stream == _STREAM and flags & _END_STREAM and kind in (_DATA, _HEADERS):
                return False  # an error has no message
        return False
    except asyncio.IncompleteReadError:
        return False
    finally:
        writer.close()


def _request(authority: str, service: str) -> bytes:
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "kube-probe"),
    )
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)
    asked = b"\x0a" + _text(service) if service else b""
    message = b"\x00" + len(asked).to_bytes(4, "big") + asked
    return _frame(_HEADERS, _END_HEADERS, _STREAM, block) + _frame(_DATA, _END_STREAM, _STREAM, message)


def _text(text: str) -> bytes:
    """A string of HPACK, and of a protobuf message of that size: a length below 127 is one byte."""
    if len(text.encode()) > 126:
        raise ValueError(f"{text[:20]}... is too long for a probe: at most 126 bytes")
    return bytes([len(text.encode())]) + text.encode()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + body


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    head = await reader.readexactly(9)
    size = int.from_bytes(head[:3], "big")
    if size > _FRAME_BYTES_MAX:
        raise ValueError("the server's protocol is not HTTP/2")
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return kind, flags, stream & 0x7FFFFFFF, await reader.readexactly(size)
