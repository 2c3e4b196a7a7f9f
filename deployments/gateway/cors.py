"""Which web pages of other origins may read the gateway's answers, by the spec's `gateway.cors` (CORS, a part of the
Fetch standard).

A browser sends such a page's request only after a preflight (`OPTIONS`) says that it may, and shows the page an answer
only with the headers below. Operators' pages have none of this: `routes.py` puts a `Doorstep` before the other paths
alone. Cookies mean nothing here, so credentials in the sense of that standard are never allowed; a key travels as a
header that the page itself sets.
"""

import re
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.spec import CorsSpec as Settings

EXTRA_HEADERS = "raylane.headers"
"""Where the scope of a request holds headers that its answer is to carry, whatever it is."""

_EXPOSED = (
    b"x-request-id, request-id, retry-after, server-timing, x-raylane-gateway, x-raylane-lane, x-raylane-placement, "
    b"x-raylane-resubmitted"
)
_NAMES = re.compile(rb"[A-Za-z0-9-]+(?: *, *[A-Za-z0-9-]+)*")
_LONGEST_NAMES = 2_048
"""Bytes of the names of headers that a preflight may ask for."""

Headers = list[tuple[bytes, bytes]]


class CorsRules:
    """The rules of a spec."""

    def __init__(self, settings: Settings | None) -> None:
        self.on = settings is not None
        self._origins = frozenset(origin.encode() for origin in settings.origins) if settings else frozenset()
        self._max_age = str(round(settings.max_age_s)).encode() if settings else b""

    def shared(self, origin: bytes) -> Headers:
        """What an answer to a page of that origin carries; an answer that differs by origin says so, or a cache would
        give it to all."""
        if b"*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        vary = (b"vary", b"Origin")
        if origin not in self._origins:
            return [vary]
        return [vary, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, headers: Mapping[bytes, bytes]) -> Headers | None:
        """The answer to a preflight; None for a request that is none, or of an origin that is not allowed.

        The page may send whatever header it asks for: clients send some of their own, and none does anything that a key
        does not open.
        """
        origin, names = headers.get(b"origin", b""), headers.get(b"access-control-request-headers", b"")
        if b"access-control-request-method" not in headers or not (
            origin in self._origins or (origin and b"*" in self._origins)
        ):
            return None
        allowed = (
            [(b"access-control-allow-headers", names)]
            if len(names) <= _LONGEST_NAMES and _NAMES.fullmatch(names)
            else []
        )
        return [
            *self.shared(origin),
            (b"access-control-allow-methods", b"GET, POST"),
            *allowed,
            (b"access-control-max-age", self._max_age),
        ]

    def note(self, scope: Scope) -> Headers | None:
        """Called before a request is served: notes in its scope what its answer is to carry. A preflight's answer, for
        one."""
        if not self.on:
            return None
        headers = dict(scope["headers"])
        preflight = self.preflight(headers) if scope["method"] == "OPTIONS" else None
        if preflight is None:
            scope[EXTRA_HEADERS] = self.shared(headers.get(b"origin", b""))
        return preflight


class Doorstep:
    """The ASGI app before a path that pages of other origins may ask for. It wraps no `send`: what answers adds the
    headers itself."""

    def __init__(self, app: ASGIApp, rules: Callable[[], CorsRules]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        preflight = self._rules().note(scope)
        await (self._app(scope, receive, send) if preflight is None else answer_preflight(send, preflight))


async def answer_preflight(send: Send, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
