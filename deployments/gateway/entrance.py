"""The gateway's entrance: which path goes where, and who may ask for it. Tenants ask with their keys, operators and the
cell's processes with the cluster's secret, operators' browsers with the cookie of a session, peer cells with a token or
a certificate (`peers/auth.py`), web pages of other origins where the spec's `gateway.cors` allows it.

A path that is not in the table `ACCESS` cannot be served, on neither of the two ports. Where a request comes from
says nothing: behind a reverse proxy or a load balancer on the same machine everybody comes from loopback. Of API keys
only digests are kept. Without tenants in the spec anybody may ask (and the gateway listens on loopback alone).
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.spec import ClusterSpec, CorsSpec, GatewaySpec, Tenant, TrafficClass
from deployments.gateway.peers.auth import PeerDoor
from deployments.openai.endpoints import ENDPOINTS, Endpoint
from deployments.openai.errors import ApiError, ErrorCode


class Access(StrEnum):
    """What a path asks for."""

    OPEN = "open"
    """Nothing: load balancers ask for it, and it says nothing of anybody's requests."""
    KEY = "key"
    """A tenant's key, where the spec has tenants; whose it is, is the path's own affair."""
    SECRET = "secret"
    """The cluster's secret, as a bearer token: it shows or changes what is not the asker's alone."""
    VIEW = "view"
    """The secret, or for a GET a session of the operators' page."""
    PAGE = "page"
    """Nothing, under a name of the gateway's own: the operators' page has no figures in it (`operators/page.py`)."""
    PEER = "peer"
    """The token of a peer cell, its certificate, or both."""


ACCESS: Mapping[str, Access] = MappingProxyType(
    {
        "/health": Access.OPEN,
        "/ready": Access.OPEN,
        "/ping": Access.OPEN,
        "/version": Access.KEY,
        "/load": Access.KEY,
        "/tokenizer_info": Access.KEY,
        "/v1/models": Access.KEY,
        "/v1/models/{name:path}": Access.KEY,
        "/v1/chat/completions": Access.KEY,
        "/v1/chat/completions/batch": Access.KEY,
        "/v1/completions": Access.KEY,
        "/v1/responses": Access.KEY,
        "/v1/embeddings": Access.KEY,
        "/v1/messages": Access.KEY,
        "/v1/messages/count_tokens": Access.KEY,
        "/invocations": Access.KEY,
        "/tokenize": Access.KEY,
        "/detokenize": Access.KEY,
        "/metrics": Access.SECRET,
        "/raylane/": Access.PAGE,
        "/raylane/page/{name:path}": Access.PAGE,
        "/raylane/session": Access.PAGE,
        "/raylane/codes": Access.SECRET,
        "/raylane/status": Access.VIEW,
        "/raylane/traffic": Access.SECRET,
        "/raylane/http_sd": Access.SECRET,
        "/raylane/requests/{request_id:path}": Access.VIEW,
        "/raylane/spec": Access.SECRET,
        "/raylane/cost": Access.VIEW,
        "/raylane/controls": Access.SECRET,
        "/raylane/release": Access.SECRET,
        "/raylane/cordon": Access.SECRET,
        "/raylane/ladder": Access.SECRET,
        "/raylane/drain": Access.SECRET,
        "/raylane/shadow": Access.SECRET,
        "/raylane/scaling/{model:path}": Access.SECRET,
        "/raylane/lanes": Access.SECRET,
        "/raylane/digests": Access.SECRET,
        "/raylane/usage": Access.SECRET,
        "/raylane/peers/digest": Access.PEER,
        "/raylane/peers/hop": Access.PEER,
        "/raylane/peers/usage": Access.PEER,
        "/raylane/peers/view": Access.PEER,
        "/raylane/regions": Access.SECRET,
    }
)


_SCHEME = "sha256:"
_BEARER = b"bearer "
_UNKNOWN = "Incorrect API key provided: it is not known here"
"""It begins with OpenAI's own words: litellm tells a wrong key from a bad request by them, and by nothing else."""


class KeyRing:
    """The keys of a spec's tenants."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._digests = [
            (bytes.fromhex(key.removeprefix(_SCHEME)), tenant) for tenant in tenants for key in tenant.keys
        ]

    def tenant_of(self, authorization: bytes, api_key: bytes = b"") -> Tenant | None:
        """The tenant whose key an `Authorization` header carries, or where there is none an `x-api-key` header, as
        Anthropic's clients send it. None where the spec has no tenants. Raises ApiError.

        Every digest is compared, each in constant time, so that the time says nothing of which key was near.
        """
        if not self._digests:
            return None
        if authorization:
            is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
            api_key = authorization[len(_BEARER) :].strip() if is_bearer else b""
        if not api_key:
            message = "no API key: send `Authorization: Bearer <key>`, or `x-api-key: <key>`"
            raise ApiError(ErrorCode.INVALID_KEY, message, headers={"www-authenticate": "Bearer"})
        given = hashlib.sha256(api_key).digest()
        found: Tenant | None = None
        for digest, tenant in self._digests:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise ApiError(ErrorCode.INVALID_KEY, _UNKNOWN, headers={"www-authenticate": "Bearer"})
        return found


def digest_of(key: str) -> str:
    return _SCHEME + hashlib.sha256(key.encode()).hexdigest()


CLASS_HEADER = b"x-raylane-class"


def class_of(spec: ClusterSpec, claimed: bytes, tenant: Tenant | None, service_tier: str) -> TrafficClass:
    """The traffic class that a request claims by its header; without one, the class of its `service_tier`
    (`service_tiers` in the spec) if its tenant may claim that, else the first that it may. Raises ApiError for a
    header that is not allowed; a tier is a hint."""
    names: Iterable[str] = map(attrgetter("name"), spec.classes)
    classes = dict(zip(names, spec.classes, strict=True))
    allowed = classes if tenant is None or tenant.classes is None else tenant.classes
    by_tier = spec.service_tiers.get(service_tier, "") if service_tier else ""
    name = claimed.decode("latin-1") or (by_tier if by_tier in allowed else next(iter(allowed)))
    if name in classes and name in allowed:
        return classes[name]
    if name in classes:
        who = tenant.name if tenant else ""
        message = f"X-Raylane-Class = {name!r}: tenant {who!r} may claim {', '.join(allowed)}"
        raise ApiError(ErrorCode.CLASS_NOT_ALLOWED, message, param="X-Raylane-Class")
    message = f"X-Raylane-Class = {name!r}: allowed: {', '.join(allowed)}"
    raise ApiError(ErrorCode.INVALID_VALUE, message, param="X-Raylane-Class")


EXTRA_HEADERS = "raylane.headers"
"""Where the scope of a request holds headers that its answer is to carry, whatever it is."""

_EXPOSED = (
    b"x-request-id, request-id, retry-after, server-timing, traceresponse, x-raylane-gateway, x-raylane-lane, "
    b"x-raylane-placement, x-raylane-resubmitted, x-raylane-region, x-raylane-degraded, x-raylane-dropped, "
    b"x-raylane-cache, x-raylane-simulated, age"
)
_NAMES = re.compile(rb"[A-Za-z0-9-]+(?: *, *[A-Za-z0-9-]+)*")
_LONGEST_NAMES = 2_048
"""Bytes of the names of headers that a preflight may ask for."""

Headers = list[tuple[bytes, bytes]]


class CorsRules:
    """Which web pages of other origins may read the gateway's answers, by a spec (CORS, a part of the Fetch standard).

    A browser sends such a page's request only after a preflight (`OPTIONS`) says that it may, and shows the page an
    answer only with the headers below. Operators' pages have none of this: a `Doorstep` stands before the other paths
    alone. Cookies mean nothing here, so credentials in the sense of that standard are never allowed; a key travels as a
    header that the page itself sets.
    """

    def __init__(self, settings: CorsSpec | None) -> None:
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


@dataclass(eq=False)
class Doorstep:
    """The ASGI app before a path that pages of other origins may ask for. It wraps no `send`: what answers adds the
    headers itself."""

    app: ASGIApp
    rules: Callable[[], CorsRules]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        preflight = self.rules().note(scope)
        await (self.app(scope, receive, send) if preflight is None else answer_preflight(send, preflight))


async def answer_preflight(send: Send, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


CODE_S = 60.0
SESSION_S = 12 * 3_600


class Operators:
    """Tells operators by the cluster's secret; and their browsers, which cannot send it by a link, by a session.

    A command of theirs asks a gateway for a code, which counts once, for a minute, at the gateway that made it. It is
    signed with the secret, so that nobody else's makes a gateway ask the others. The page exchanges it for a cookie:
    the time of its end, signed likewise, so that every gateway knows it.
    `endpoint`: the URL at which the region's gateways are reached, if it has one.
    """

    def __init__(self, secret: str, endpoint: str | None) -> None:
        self._secret = secret.encode()
        self._names = {"localhost", urlsplit(endpoint or "http://localhost").hostname}
        self._codes: dict[str, float] = {}
        self.cookie_name = f"raylane-{self._signature('name')[:8]}"
        """One a cell: browsers send cookies to all ports of a host."""

    def have_sent(self, scope: Scope) -> bool:
        """Whether a request carries the secret."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], b"Bearer " + self._secret)

    def new_code(self, now_s: float) -> str:
        self._codes = {code: until_s for code, until_s in self._codes.items() if until_s > now_s}
        made = secrets.token_urlsafe(16)
        code = f"{made}.{self._signature(f'code {made}')}"
        self._codes[code] = now_s + CODE_S
        return code

    def have_made(self, code: str) -> bool:
        """Whether a gateway of this cell made it, whichever and whenever."""
        made, _, signature = code.partition(".")
        return hmac.compare_digest(signature.encode(), self._signature(f"code {made}").encode())

    def spend(self, code: str, now_s: float) -> bool:
        """Whether it was made here less than a minute ago, and is used for the first time."""
        return self._codes.pop(code, now_s) > now_s

    def new_cookie(self, unix_s: float) -> str:
        until = str(int(unix_s) + SESSION_S)
        return f"{until}.{self._signature(until)}"

    def view(self, request: Request, unix_s: float) -> bool:
        """Whether this is a GET by the page, in a session."""
        until, _, signature = request.cookies.get(self.cookie_name, "").partition(".")
        is_signed = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        by_page = request.headers.get("sec-fetch-site", "same-origin") == "same-origin" and self.mean_this_host(request)
        return is_signed and unix_s < int(until) and by_page and request.method == "GET"

    def mean_this_host(self, request: Request) -> bool:
        """Whether the browser asks for an address, for `localhost` or for the endpoint's name, and not for another name
        that resolves to this address (DNS rebinding); and if a web page asks, whether it is one of that very host."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if origin not in (None, f"http://{host}", f"https://{host}"):  # a proxy before the gateway may speak TLS
            return False
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or bool(ipaddress.ip_address(name))
        return False

    def _signature(self, text: str) -> str:
        return hmac.digest(self._secret, b"raylane page " + text.encode(), "sha256").hex()


@dataclass(eq=False)
class Door:
    """The ASGI app behind a path that asks for the secret, or where `by_session` for a session. Who has none gets
    `refusal` instead."""

    app: ASGIApp
    operators: Operators
    refusal: ASGIApp
    by_session: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange; nothing of it is read before the secret was seen."""
        enters = self.operators.have_sent(scope)
        if self.by_session and not enters:
            enters = self.operators.view(Request(scope), time.time())
        await (self.app if enters else self.refusal)(scope, receive, send)


def behind_doors(
    routes: Sequence[Route], operators: Operators, refusal: ASGIApp, cors: Callable[[], CorsRules]
) -> list[Route]:
    """The routes, each asking for what the table says; web pages of other origins get none of the operators'.

    Raises KeyError for a path that is not in it, TypeError for a page for peers that has no door of theirs.
    """

    def guarded(route: Route) -> ASGIApp:
        access = ACCESS[route.path]
        if access is Access.PEER:
            if not isinstance(route.app, PeerDoor):
                raise TypeError(f"{route.path}: needed: a page behind a PeerDoor")
            return route.app
        if access in (Access.SECRET, Access.VIEW):
            return Door(route.app, operators, refusal, access is Access.VIEW)
        return route.app if access is Access.PAGE else Doorstep(route.app, cors)

    return [Route(route.path, guarded(route)) for route in routes]


class Relaying(Protocol):
    """What of the service the entrance uses."""

    settings: GatewaySpec
    cors: CorsRules

    def handle(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Runs one request to its end."""


class ClientApp:
    """The ASGI app of the port for clients: relayed endpoints, and the gateway's own pages.

    A relayed endpoint is found by its path before the router is asked, and this is no coroutine of its own: every
    layer between the server and the relay would be resumed for each piece of a stream. Each path is served below the
    spec's `gateway.root_path`, too, under the same rule of access.
    """

    def __init__(self, service: Relaying, pages: Router) -> None:
        self.relayed: Mapping[str, Endpoint] = {one.path: one for one in ENDPOINTS if ACCESS[one.path] is Access.KEY}
        self.pages = pages
        self._service = service

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        root = self._service.settings.root_path
        if root and scope["path"].startswith(root + "/"):
            scope["path"] = scope["path"].removeprefix(root)
        endpoint = self.relayed.get(scope["path"])
        if endpoint is None:
            return self.pages(scope, receive, send)
        preflight = self._service.cors.note(scope)
        return (
            self._service.handle(endpoint, scope, receive, send)
            if preflight is None
            else answer_preflight(send, preflight)
        )
