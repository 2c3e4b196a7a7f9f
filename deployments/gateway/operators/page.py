"""The operators' page, `http://GATEWAY/raylane/`: its files, which are open and have no figures, and the session that
opens the paths of `Access.VIEW` (`entrance.py`) to a browser."""

import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.gateway.entrance import SESSION_S, Operators
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.own_page import OwnPage, body_of
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown

_FOLDER = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_MAX_CODE_BYTES = 200


class OperatorPage:
    """`others`: one of them may have made a code that a browser brings here, since gateways share a port."""

    def __init__(self, service: Service, operators: Operators, others: OtherGateways) -> None:
        self._service = service
        self._operators = operators
        self._others = others
        files = (path for path in _FOLDER.rglob("*") if path.suffix in _TYPES)
        self._files = {str(path.relative_to(_FOLDER)): path.read_bytes() for path in files}

    def routes(self) -> list[Route]:
        return [
            Route("/raylane/", OwnPage(self._file, self._service, quiet=True)),
            Route("/raylane/page/{name:path}", OwnPage(self._file, self._service, quiet=True)),
            Route("/raylane/session", OwnPage(self._session, self._service, ("POST",))),
            Route("/raylane/codes", OwnPage(self._codes, self._service, ("POST", "DELETE"))),
        ]

    async def _file(self, request: Request) -> Response:
        self._check(request)
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise ApiError(ErrorCode.NOT_FOUND, f"{shown(name)}: allowed: {', '.join(self._files)}")
        return Response(self._files[name], media_type=_TYPES[Path(name).suffix], headers=_HEADERS)

    async def _session(self, request: Request) -> Response:
        """Exchanges a code, which is the body, for the session's cookie. Without a `Path`, a browser sends it to what
        lies beside this path, wherever a proxy has put that."""
        self._check(request)
        sent = await body_of(request, _MAX_CODE_BYTES)
        code = sent.decode("latin-1")
        spent = self._operators.have_made(code) and (
            self._operators.spend(code, time.monotonic())
            or await self._others.ask("/raylane/codes", dict, "DELETE", sent)
        )
        if not spent:
            raise ApiError(ErrorCode.UNAUTHORIZED, "the code was used, or is older than a minute; needed: a new one")
        response = Response(status_code=204)
        cookie = self._operators.cookie_name, self._operators.new_cookie(time.time())
        secure = request.headers.get("origin", "").startswith("https:")
        response.set_cookie(*cookie, SESSION_S, path=None, secure=secure, httponly=True, samesite="strict")
        return response

    async def _codes(self, request: Request) -> Response:
        """POST makes one, DELETE spends the one in the body, which was made here."""
        if request.method == "POST":
            return JSONResponse({"code": self._operators.new_code(time.monotonic())})
        code = (await body_of(request, _MAX_CODE_BYTES)).decode("latin-1")
        if not self._operators.spend(code, time.monotonic()):
            raise ApiError(ErrorCode.NOT_FOUND, "no such code was made here within the last minute")
        return JSONResponse({})

    def _check(self, request: Request) -> None:
        if not self._operators.mean_this_host(request):
            host, origin = (shown(request.headers.get(name, "")) for name in ("host", "origin"))
            allowed = "an address, localhost, or the name in the region's endpoint, and the page's own origin"
            raise ApiError(ErrorCode.ORIGIN_NOT_ALLOWED, f"Host = {host}, Origin = {origin}: allowed: {allowed}")
