"""The files of the page, from the installed package, and the headers that every reply of the page has."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from kedge.server.http.reply_head import Header

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
INDEX: Final = "index.html"
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""No script or style but the page's own files, no other origin, no frame around it, and no HTML made from text."""
SAFETY_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Security-Policy", POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)


def read_files() -> dict[str, tuple[bytes, bytes]]:
    """Each file of the page by its name: its type and its content."""
    found = {}
    for each in files("kedge.ui").joinpath("static").iterdir():
        kind = _TYPES.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = (kind, each.read_bytes())
    return found
