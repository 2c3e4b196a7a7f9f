"""Which heads of requests are refused, though the parser takes them: those that a proxy in front may read otherwise, so
that the two disagree about where a request ends or whom it is for (RFC 9112, sections 3.2 and 6; "request smuggling").

The parser (llhttp, in its strict mode) refuses by itself: a second content-length, one beside transfer-encoding, one
that is no number, transfer encodings that do not end in chunked, space before a colon, folded fields, bare line feeds,
bad chunk sizes.
"""

import re
from collections.abc import Sequence

_HOST = re.compile(rb"[^\s/?#@\\]*")


class BadHead(ValueError):
    """Why a head is refused; the message is for the client."""


def check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raises BadHead. `headers` with names in lower case."""
    if version not in ("1.0", "1.1"):
        raise BadHead(f"HTTP version {version}; allowed: 1.1, 1.0")
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version == "1.1"):
        raise BadHead(
            f"{hosts} Host headers; allowed: exactly one" + (", or none in HTTP/1.0" if version == "1.0" else "")
        )
    if hosts and not _HOST.fullmatch(headers[names.index(b"host")][1]):
        raise BadHead("the Host header is no host; allowed: a name or an address, with or without a port")
    if names.count(b"authorization") > 1:
        raise BadHead("Authorization: allowed: once")
    if names.count(b"x-api-key") > 1:
        raise BadHead("x-api-key: allowed: once")
    codings = names.count(b"transfer-encoding")
    if codings and (
        version == "1.0" or codings > 1 or headers[names.index(b"transfer-encoding")][1].lower() != b"chunked"
    ):
        raise BadHead("Transfer-Encoding: allowed: chunked, once, and not in HTTP/1.0")
    if names.count(b"content-length") > (0 if codings else 1):
        raise BadHead("Content-Length: allowed: once, and not beside Transfer-Encoding")
