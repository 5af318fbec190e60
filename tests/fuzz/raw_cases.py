"""Byte streams below HTTP that a hostile client might send, drawn from a seeded source of randomness.

Objects of two names must never be stored: `half-` is in requests that are cut off, `smuggled-` in bodies that a lenient
parser would take for a second request.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

MAPS = b"/api/v1/namespaces/default/configmaps"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""A whole request at the end of most cases: the server closes after it, if it came so far."""


class RawCase(NamedTuple):
    """The pieces that one connection sends, and whether it then closes its side."""

    name: str
    pieces: tuple[bytes, ...]
    half_close: bool = False


def post(name: bytes, *headers: bytes, path: bytes = MAPS) -> bytes:
    body = b'{"metadata":{"name":"%b"}}' % name
    return b"\r\n".join(
        [b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers, b"", body]
    )


def get(path: bytes = MAPS + b"/a", *headers: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"%b %b %b" % (method, path, version), b"Host: x", *headers, b"", b""])


SMUGGLED = post(b"smuggled-body")


def _framed(*headers: bytes, body: bytes = b"0\r\n\r\n" + SMUGGLED) -> bytes:
    return b"\r\n".join([b"POST %b HTTP/1.1" % MAPS, b"Host: x", *headers, b"", body])


FRAMINGS = (
    (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    (b"Content-Length: 5", b"Content-Length: 6"),
    (b"Content-Length: 5", b"Content-Length: 5"),
    (b"Content-Length: 5, 5",),
    (b"Content-Length: +5",),
    (b"Content-Length: -5",),
    (b"Content-Length: 0x5",),
    (b"Content-Length: 5 5",),
    (b"Content-Length:",),
    (b"Content-Length: 99999999999999999999999999",),
    (b"Content-Length : 5",),
    (b" Content-Length: 5",),
    (b"Content-Length\t: 5",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: chunked, identity",),
    (b"Transfer-Encoding: identity, chunked",),
    (b"Transfer-Encoding: chunked, chunked",),
    (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding : chunked",),
    (b"Transfer-Encoding:\x0bchunked",),
    (b"Transfer-Encoding: gzip, chunked",),
    (b"X: 1\n Transfer-Encoding: chunked",),
    (b"X: 1\r\n\tfolded: yes", b"Content-Length: 5"),
    (b"X: 1\nContent-Length: 5",),
    (b"X: a\x00b", b"Content-Length: 5"),
    (b"X\x00Y: a", b"Content-Length: 5"),
    (b"X: a\rb", b"Content-Length: 5"),
    (b": empty", b"Content-Length: 5"),
    (b"no colon", b"Content-Length: 5"),
)
"""Headers about which two parsers may disagree: each must be refused, and the rest of the connection not read."""
ODD_HEADERS = (
    (b"Expect: 100-continue", b"Content-Length: 5"),
    (b"Expect: something", b"Content-Length: 5"),
    (b"Upgrade: websocket", b"Connection: Upgrade", b"Content-Length: 5"),
    (b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
)
CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;x=y\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"5\r\nhello0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"\r\n0\r\n\r\n",
    b"00000000000000000000005\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"5\r\nhel",
    b"7fffffffffffffff\r\nhello",
    b"5\r\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"x" * 9_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nContent-Length: 7\r\n\r\n",
    b"g\r\nhello\r\n0\r\n\r\n",
    b"5\x00\r\nhello\r\n0\r\n\r\n",
)
TARGETS = (
    b"/../../etc/passwd",
    b"/api/v1/../../metrics",
    b"/api/v1/namespaces/../secrets",
    b"/api/v1/namespaces/%2e%2e/pods",
    b"/api/v1/namespaces/default%2fpods/a",
    b"/api/v1/namespaces/default/configmaps/%2e%2e%2fsecrets",
    b"/api/v1/namespaces/default/configmaps/a%00b",
    b"/api/v1/namespaces/default/configmaps/%ff%fe",
    b"/api/v1/namespaces/default/configmaps/%",
    b"/api/v1/namespaces/default/configmaps/%zz",
    b"//api/v1/pods",
    b"/api//v1//pods",
    b"/api/v1/pods/",
    b"/api/v1/pods;a=b",
    b"/api/v1/pods#x",
    b"/api/v1/pods?",
    b"/api/v1/pods??watch=0",
    b"http://x/api/v1/pods",
    b"https://other.example/metrics",
    b"http://x:99999/api/v1/pods",
    b"x:443",
    b"*",
    b"",
    b"/api/v1/pods?labelSelector=%ff",
    b"/api/v1/pods?limit=-1",
    b"/api/v1/pods?limit=99999999999999999999",
    b"/api/v1/pods?continue=%00",
    b"/api/v1/pods?resourceVersion=1e9",
    b"/api/v1/pods?fieldSelector=a%3D%3D%3Db",
    b"/api/v1/pods?labelSelector=a+in+(",
    b"/api/v1/pods?" + b"&".join([b"a=b"] * 200),
    b"/" + b"a/" * 500,
    b"/apis/apps/v1/namespaces/default/deployments/x/scale/y/z",
    b"/kedge/batch",
    b"/openapi/v3/apis/../../x",
    b"/api/v1/namespaces/default/configmaps/" + b"x" * 20_000,
    b"/\xc3\xa9",
    b"/%c3%a9",
    b"/a\\b",
    b"/api/v1/pods\x00",
)
LINES = (
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.9\r\nHost: x\r\n\r\n",
    b"GET / HTP/1.1\r\nHost: x\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PROPFIND / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 64,
    b"\n" * 64,
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET / HTTP/1.1\rHost: x\r\r",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\tHTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD " + MAPS + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD " + MAPS + b"?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"DELETE " + MAPS + b"/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
)


def _split(source: random.Random, data: bytes) -> tuple[bytes, ...]:
    """Cut at a few random places, or into single bytes at the start."""
    if source.random() < 0.1:
        return (*(data[n : n + 1] for n in range(min(len(data), 40))), data[40:])
    places = sorted(source.randrange(len(data) + 1) for _ in range(source.randrange(1, 5)))
    return tuple(data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True))


def _split_case(source: random.Random) -> RawCase:
    return RawCase("split", _split(source, post(b"whole-%d" % source.randrange(1_000_000)) + LAST))


def _pipelined(source: random.Random) -> RawCase:
    count = source.choice((2, 3, 8, 16, 17, 40))
    some = (get(), get(MAPS), post(b"whole-%d" % source.randrange(1_000_000)), get(b"/livez"), get(b"/nothing"))
    return RawCase("pipelined", _split(source, b"".join(source.choice(some) for _ in range(count)) + LAST))


def _oversized(source: random.Random) -> RawCase:
    huge = source.choice((70_000, 200_000))
    kind = source.randrange(6)
    if kind == 0:
        data = get(MAPS, b"X: " + b"x" * huge)
    elif kind == 1:
        data = get(MAPS, *(b"X-%d: y" % n for n in range(huge // 10)))
    elif kind == 2:
        data = get(b"/" + b"u" * huge)
    elif kind == 3:
        data = _framed(b"Content-Length: %d" % (4 << 20), body=b"x" * 1_000)
    elif kind == 4:
        data = _framed(b"Transfer-Encoding: chunked", body=b"10000\r\n%b\r\n" % (b"x" * 65536) * 60)
    else:
        data = b"G" * huge
    return RawCase("oversized", (data, LAST))


def _half_sent(source: random.Random) -> RawCase:
    whole = post(b"half-%d" % source.randrange(1_000_000))
    return RawCase("half sent", (whole[: source.randrange(1, len(whole))],), half_close=True)


def _smuggled(source: random.Random) -> RawCase:
    if source.random() < 0.1:
        return RawCase("odd headers", (_framed(*source.choice(ODD_HEADERS), body=b"hello"), LAST))
    return RawCase("smuggled", (_framed(*source.choice(FRAMINGS)), LAST))


def _chunked(source: random.Random) -> RawCase:
    return RawCase("chunks", (_framed(b"Transfer-Encoding: chunked", body=source.choice(CHUNKS)), LAST))


def _target(source: random.Random) -> RawCase:
    method = source.choice((b"GET", b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS"))
    return RawCase("target", (get(source.choice(TARGETS), b"Content-Length: 0", method=method), LAST))


def _line(source: random.Random) -> RawCase:
    return RawCase("line", (source.choice(LINES), LAST))


def _mutated(source: random.Random) -> RawCase:
    framed = _framed(*source.choice(FRAMINGS), body=b"0\r\n\r\n")
    data = bytearray(source.choice((post(b"odd-1"), get(), get(MAPS), framed)) + LAST)
    for _ in range(source.randrange(1, 6)):
        at = source.randrange(len(data))
        match source.randrange(4):
            case 0:
                data[at] = source.randrange(256)
            case 1:
                del data[at : at + source.randrange(1, 8)]
            case 2:
                data[at:at] = source.randbytes(source.randrange(1, 8))
            case _:
                data[at:at] = source.choice((b"\r\n", b"\n", b"\x00", b": ", b"\r\n\r\n", b"%", b"/../"))
        if not data:
            data += b"\r\n"
    return RawCase("mutated", _split(source, bytes(data)))


KINDS: tuple[Callable[[random.Random], RawCase], ...] = (
    _split_case, _pipelined, _half_sent, _smuggled, _smuggled, _chunked, _target, _target, _line, _mutated, _mutated,
    _mutated, _mutated,
)  # fmt: skip


def raw_case(source: random.Random) -> RawCase:
    """One case. Oversized ones are rare: each is some megabytes of work."""
    if source.random() < 0.01:
        return _oversized(source)
    return source.choice(KINDS)(source)


def smuggling_cases() -> list[RawCase]:
    return [RawCase(f"framing {n}", (_framed(*each), LAST)) for n, each in enumerate(FRAMINGS)]


def table_cases() -> list[RawCase]:
    """Every fixed trick once."""
    found = smuggling_cases()
    found += [RawCase(f"odd headers {n}", (_framed(*each, body=b"hello"), LAST)) for n, each in enumerate(ODD_HEADERS)]
    found += [
        RawCase(f"chunk {n}", (_framed(b"Transfer-Encoding: chunked", body=each), LAST))
        for n, each in enumerate(CHUNKS)
    ]
    found += [RawCase(f"target {n}", (get(each), LAST)) for n, each in enumerate(TARGETS)]
    found += [RawCase(f"line {n}", (each, LAST)) for n, each in enumerate(LINES)]
    return found
