"""A page that the gateway answers itself: its errors' form, its request id, its line in the journal."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from deployments.gateway.connection import cut
from deployments.gateway.entrance import EXTRA_HEADERS, Operators, behind_doors
from deployments.gateway.service import Service, new_ledger, outcome_of
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown

log = logging.getLogger("raylane.gateway")

ORDER_S = 5.0
"""So long the directory may take to put something in force."""
QuestionT = TypeVar("QuestionT", bound="PageQuestion")
Handler = Callable[[Request], Awaitable[Response]]
_PATH_CHARS = 200
"""Of a path that a client made up, so much is written down."""


@dataclass(eq=False)
class OwnPage:
    """The ASGI app of one path that the gateway answers itself.

    It gives the answer its request id, errors their form, and the journal its line; not for `quiet` pages, which probes
    and scrapers ask for all the time.
    """

    handler: Handler
    service: Service
    methods: tuple[str, ...] | None = ("GET", "HEAD")
    quiet: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ledger = new_ledger(scope, scope["path"][:_PATH_CHARS])
        try:
            response = await self._answer(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            ledger.error = error.error.code
            response = _error_response(error)
        except Exception:
            log.exception("%s failed inside the gateway", ledger.path)
            ledger.error = ErrorCode.INTERNAL.code
            response = _error_response(ApiError(ErrorCode.INTERNAL, f"internal error; request id {ledger.request_id}"))
        response.headers["x-request-id"] = ledger.request_id
        if self.service.cell:
            response.headers["x-raylane-region"] = self.service.cell
        for name, value in scope.get(EXTRA_HEADERS, ()):
            response.headers.append(name.decode(), value.decode())
        if self.service.leaving:
            response.headers["connection"] = "close"
        await send_or_cut(response, self.service, scope, receive, send)
        if not self.quiet:
            ledger.status, ledger.bytes_out, ledger.ended_s = response.status_code, len(response.body), time.monotonic()
            ledger.outcome = outcome_of(ledger)
            self.service.closing.ended(ledger)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        if self.methods is not None and scope["method"] not in self.methods:
            allowed = ", ".join(self.methods)
            raise ApiError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{scope['method']} {scope['path']}: allowed: {allowed}",
                headers={"allow": allowed},
            )
        return await self.handler(Request(scope, receive))


async def send_or_cut(response: Response, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends an answer. A client that has not read those before it is cut off."""
    try:
        async with asyncio.timeout(service.settings.timeouts.client_stall_s):
            await response(scope, receive, send)
    except TimeoutError:
        cut(send)


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The body of a request to an own page. Raises ApiError as soon as it is longer than that."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise ApiError(
                ErrorCode.BODY_TOO_LARGE, f"the body has over {max_bytes} bytes", headers={"connection": "close"}
            )
    return bytes(body)


def invalid(error: ValidationError) -> ApiError:
    """The first key that a question or a form has wrong."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    message = f"{key or 'the body'} = {shown(problem['input'])}: {problem['msg']}"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=key or None)


@asynccontextmanager
async def directory_answers(within_s: float) -> AsyncIterator[None]:
    """Around a call of the cell's directory. Raises ApiError where it fails, or has not answered in time: then it may
    still do what it was asked to."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except ApiError:
        raise
    except TimeoutError as error:
        late = f"the directory has not answered for {within_s:g} s, but may still do what it was asked to"
        raise ApiError(ErrorCode.NO_DIRECTORY, late) from error
    except Exception as error:  # any failure of Ray, or of the disk under the audit
        raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory did not do what it was asked to: {error!r}") from error


class PageQuestion(BaseModel):
    """What a page is asked, by its query or its body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_question(kind: type[QuestionT], content: Any) -> QuestionT:
    """Raises ApiError."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise invalid(error) from None


def _error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.error.status, headers=error.headers)


def build_cell_app(service: Service, own: Sequence[Route], operators: Operators) -> Router:
    """The app of the port for the cell: the gateway's own pages, and no requests of clients."""
    routes = behind_doors(own, operators, OwnPage(_unauthorized, service, methods=None), lambda: service.cors)
    return Router(routes, default=OwnPage(_not_found, service, methods=None), redirect_slashes=False)


async def _unauthorized(request: Request) -> Response:
    raise ApiError(
        ErrorCode.UNAUTHORIZED,
        "this page needs `Authorization: Bearer <the cluster's secret>`",
        headers={"www-authenticate": "Bearer"},
    )


async def _not_found(request: Request) -> Response:
    raise ApiError(ErrorCode.NOT_FOUND, f"{request.method} {shown(request.url.path)}: no such path")
