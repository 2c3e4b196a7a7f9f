"""The gateway's request path: body -> inquiry -> lane -> lease -> relay -> ledger. `entrance.py` hangs it on paths,
`deployment.py` runs it.

No Ray, vLLM or torch here: what it needs of them comes in through the dispatchers and the replicas' feeds.
"""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import aiohttp
from starlette.types import Receive, Scope, Send

from cluster.spec import CacheSpec, ClusterSpec, Model, Region, Tenant, Tracing, TrafficClass
from deployments.engine_model.itl_bounds import group_costs, with_starts
from deployments.gateway.cache import ResponseCache
from deployments.gateway.connection import Connection, Digests, Reader
from deployments.gateway.context import shorten
from deployments.gateway.entrance import EXTRA_HEADERS, CorsRules, KeyRing
from deployments.gateway.exchange import BrokenExchanges, run_direct
from deployments.gateway.external import ExternalTier, route_of
from deployments.gateway.fallback import FALLBACK_HEADER, NEVER, Alternative, Fallback, run_with_fallback
from deployments.gateway.flow import Aborted, EndCause, Flows, RequestFlow
from deployments.gateway.peers.hop import HandOvers
from deployments.gateway.placed import count_cached, run_leased
from deployments.gateway.semantic import embed
from deployments.http.limits import ClientLimits
from deployments.openai.across import means_the_same
from deployments.openai.clamp import clamp_of
from deployments.openai.endpoints import BY_KIND, BodyKind, Endpoint, ModelTask
from deployments.openai.errors import ApiError, Dialect, ErrorCode
from deployments.openai.fields import not_served, with_member
from deployments.openai.inquiry import Inquiry
from deployments.openai.prefix import CHUNK_CHARS, CHUNK_IDS, Salts
from deployments.ownership.dispatcher import Dispatcher
from deployments.protocol import Finished, FirstTokens
from deployments.scheduling import Binding, Request, Rung, SchedulingPolicy
from deployments.scheduling.policy import binding_of, policy_of
from deployments.telemetry.journal import Closing
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.trace_context import context_of
from deployments.telemetry.verdicts import RequestVerdict

log = logging.getLogger("raylane.gateway")

ConnectionT = TypeVar("ConnectionT", bound=Connection)
_ADAPTER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Service:
    """Everything that lives as long as the gateway: a dispatcher for each model, flows, ledgers that close."""

    def __init__(
        self,
        spec: ClusterSpec,
        home: Region,
        models: tuple[Model, ...],
        gateway_id: str,
        session: aiohttp.ClientSession,
        on_closed: Callable[[Ledger], None],
        secret: str,
        salt_secret: str | None = None,
    ) -> None:
        self.session = session
        self.gateway_id = gateway_id
        self.tracing = spec.tracing
        self.cell = "" if spec.peering is None else home.name
        """This cell's name, where it has peers."""
        self.hand_overs: HandOvers | None = None
        """Where it has peers (`peers/peering.py`)."""
        self.external: ExternalTier | None = None
        """Where the spec has one."""
        self.flows = Flows()
        self.broken_exchanges = BrokenExchanges()
        self.leaving = False
        """Not ready any more: other gateways take over, and connections end with their next answer."""
        self.draining = False
        """Takes no more requests."""
        self.dispatchers = {model.name: Dispatcher(model, gateway_id) for model in models}
        self.cache: ResponseCache | None = None
        self._salt_secret = salt_secret or secret
        self._home = home
        self.configure(spec)
        self._on_closed = on_closed
        self.closing = Closing(self._close)
        self._reader = Reader()
        self._digests = Digests(secret)

    def configure(self, spec: ClusterSpec) -> None:
        """Takes over what can change of a spec while the cell runs (`live_spec.py`), and models whose replicas a
        deployment replaces. Requests under way keep the time-outs that they began with. Raises RuntimeError, and takes
        over nothing, where the spec needs an extra that is not installed."""
        if (self.cache and self.cache.settings) != spec.gateway.cache:
            self.cache = self.new_cache(spec.gateway.cache)
        self._spec = spec
        self._served: dict[str, Dispatcher] = {}
        for name, dispatcher in self.dispatchers.items():
            dispatcher.model = spec.model(name)
            dispatcher.context_tokens = (
                spec.context_of(dispatcher.model, self._home) if len(self.views_of(name)) > 1 else 0
            )
            self._served |= dict.fromkeys(dispatcher.model.served_names, dispatcher)
        self.settings = spec.gateway
        self.keys = KeyRing(spec.tenants)
        self.cors = CorsRules(spec.gateway.cors)
        self._salts = Salts(spec, self._salt_secret)
        self._limited = {name for name, one in policy_of(spec).tenants.items() if one.is_limited}
        self._patience_s = {one.name: spec.patience_s(one) for one in spec.classes}
        limits, times = spec.gateway.limits, spec.gateway.timeouts
        self._client_limits = ClientLimits(times.client_stall_s, limits.min_body_bytes_per_s, limits.max_connections)

    def client_limits(self) -> ClientLimits:
        return self._client_limits

    @property
    def spec(self) -> ClusterSpec:
        return self._spec

    @property
    def served_names(self) -> list[str]:
        return list(self._served)

    def account(self, message: FirstTokens | Finished) -> None:
        """An engine's account of requests came over a feed: whose first tokens are there, or the statistics of one that
        ended."""
        if isinstance(message, Finished):
            self.closing.finished(message)
        else:
            self.closing.first_tokens(message, time.monotonic())

    def sweep(self) -> None:
        """Ends what is late. Called every `flow.SWEEP_S`."""
        now = time.monotonic()
        self.flows.sweep(now)
        for dispatcher in self.dispatchers.values():
            dispatcher.hand_on(now)
        self.closing.sweep(now)
        if self.cache is not None:
            self.cache.sweep()

    def handle(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Runs a client's request to its end, when awaited."""
        ledger = new_ledger(scope, endpoint.path, self.tracing)
        ledger.gateway, ledger.cell = self.gateway_id, self.cell
        if endpoint.dialect is Dialect.ANTHROPIC:  # its clients look for the id under this name
            scope[EXTRA_HEADERS] = [*scope.get(EXTRA_HEADERS, ()), (b"request-id", ledger.request_id.encode())]
        if ledger.trace is not None:  # by W3C's draft
            scope[EXTRA_HEADERS] = [
                *scope.get(EXTRA_HEADERS, ()),
                (b"traceresponse", ledger.trace.traceparent.encode()),
            ]
        return self.run(self.connection(Connection, scope, receive, send, ledger, endpoint))

    def connection(
        self, kind: type[ConnectionT], scope: Scope, receive: Receive, send: Send, ledger: Ledger, endpoint: Endpoint
    ) -> ConnectionT:
        """The client's side of a request."""
        flow, max_bytes = RequestFlow(ledger, self.settings.timeouts), self.settings.limits.max_body_bytes
        return kind(scope, receive, send, flow, endpoint, max_bytes, self._client_limits, lambda: self.leaving)

    async def run(self, client: Connection) -> None:
        """Runs a request to its end, of a client of this cell or of a peer's."""
        flow, ledger = client.flow, client.flow.ledger
        async with self.flows.hold(flow):
            try:
                with flow.guard():
                    answering = await self._read(client)
                    await answering
                ledger.outcome = outcome_of(ledger)
            except Aborted as aborted:
                ledger.outcome = (
                    RequestOutcome.CANCELLED if aborted.cause is EndCause.CLIENT_GONE else RequestOutcome.FAILED
                )
                ledger.error = aborted.error.error.code if aborted.error else aborted.cause.value
                await self._fail(client, aborted.error)
            except ApiError as error:
                is_refused = error.error.status < 500 or error.error is ErrorCode.HOP_REFUSED
                ledger.outcome = RequestOutcome.REFUSED if is_refused else RequestOutcome.FAILED
                ledger.error = error.error.code
                await self._fail(client, error)
            except Exception:
                log.exception("request %s failed inside the gateway", ledger.request_id)
                ledger.error = ErrorCode.INTERNAL.code
                message = f"internal error; request id {ledger.request_id}"
                await self._fail(client, ApiError(ErrorCode.INTERNAL, message))
            finally:
                client.unwatch()
                ledger.ended_s, ledger.client_rtt_s = time.monotonic(), client.rtt_s()
                self.closing.ended(ledger)

    async def _read(self, client: Connection) -> Awaitable[None]:
        """Reads a request and judges it; what is returned answers it. (It is awaited in `run`: here it would be one
        frame more to resume.)"""
        flow, endpoint = client.flow, client.endpoint
        if self.draining:
            raise ApiError(
                ErrorCode.DRAINING, "this gateway is stopping; send the request again", headers={"retry-after": "1"}
            )
        if client.method != "POST":
            raise ApiError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{client.method} {endpoint.path}: allowed: POST",
                headers={"allow": "POST"},
            )
        tenant = client.tenant(self.keys, self._spec)
        flow.ledger.tenant = tenant.name if tenant else ""
        body = await client.read_body()
        if self.hand_overs is not None:
            client.given_body = body
        reading = await self._reader.read(
            endpoint.body,
            body,
            self.settings.limits,
            self._salts.of(tenant),
            partial(self._digests.of, endpoint.path),
        )
        inquiry, flow.ledger.read_s, flow.ledger.digest = reading.inquiry, reading.cpu_s, reading.digest
        client.body = reading.body
        if endpoint.body is BodyKind.ANY:
            if _ADAPTER_HEADER.lower().encode() in client.headers:
                raise ApiError(
                    ErrorCode.UNSUPPORTED,
                    f"{_ADAPTER_HEADER}: not served here; name the adapter as `model` in the body",
                )
            client.endpoint = endpoint = BY_KIND[inquiry.kind]
        dispatcher = self.dispatcher_of(inquiry.model)
        _check_task(dispatcher.model, endpoint)
        flow.ledger.model, flow.ledger.stream = dispatcher.model.name, inquiry.stream
        if inquiry.model in dispatcher.model.aliases:
            body = with_member(body, "model", dispatcher.model.name)
            client.set_member("model", dispatcher.model.name)
        client.watch()
        if endpoint.leased:
            traffic_class = client.traffic_class(self._spec, tenant, inquiry.service_tier)
            flow.ledger.traffic_class = traffic_class.name
            cache, may_serve = self.cache, self._may_serve(tenant, traffic_class)
            if cache is not None and client.hop is None and may_serve:
                kept = await cache.look_up(endpoint, dispatcher.replicas, flow.ledger, client, body)
                if kept is not None:
                    if flow.ledger.tenant in self._limited:
                        await count_cached(dispatcher, flow, self._patience_s[traffic_class.name])
                    return cache.give(kept, client)
            drops = traffic_class.context == "drop_turns" if inquiry.truncation is None else inquiry.truncation
            if drops and client.hop is None:  # of a guest, home has judged it
                counter = self.session if may_serve else None
                shorter = await shorten(counter, dispatcher, client, inquiry, body)
                if shorter is not None:
                    reading = await self._reader.read(
                        endpoint.body, shorter, self.settings.limits, self._salts.of(tenant), lambda _: reading.digest
                    )
                    inquiry, client.body = reading.inquiry, reading.body
                    client.given_body = shorter if client.given_body else b""
            asked = self._request(inquiry, dispatcher.model, flow.ledger, traffic_class, len(client.given_body))
            request = client.submitted(asked, dispatcher.model.name)
            flow.ledger.submitted(time.monotonic())
            may = not (client.hop or (tenant and "fallback" in tenant.spare))
            may = may and client.headers.get(FALLBACK_HEADER) != NEVER
            fallback = self._fallback(dispatcher.model, inquiry, traffic_class, flow.ledger, client) if may else None
            if self._spec.ladder and client.hop is None:
                spared = () if tenant is None else tenant.spare
                models = (dispatcher.model,) if fallback is None else (dispatcher.model, fallback.dispatcher.model)
                client.clamp = clamp_of(inquiry, client.body, models)
                can = {Rung.CLAMP: client.clamp is not None, Rung.FALLBACK: fallback is not None, Rung.SHED: True}
                rungs = tuple(rung for rung in Rung if can[rung] and rung not in spared)
                request = replace(request, rungs=rungs)
            alternatives: list[Alternative] = [] if fallback is None else [partial(fallback.run, request)]
            if self.external is not None and may:
                route = route_of(self.external.settings, inquiry, client.body, dispatcher.model, traffic_class, tenant)
                alternatives += [] if route is None else [partial(self.external.run, route)]
            if alternatives:
                return run_with_fallback(self, alternatives, dispatcher, request, client)
            return run_leased(self, dispatcher, request, client)
        context = dispatcher.longest_context
        inquiry.check_limits(context, self.settings.limits.max_sequences, dispatcher.ratio.max_chars(context))
        return run_direct(self.session, dispatcher, client)

    def views_of(self, model: str) -> tuple[Model, ...]:
        """The groups of the model that run here, as the spec in force has them."""
        return self._spec.groups_of(self._spec.model(model), self._home)

    def settings_of(self, model: str) -> tuple[SchedulingPolicy, Binding]:
        """The settings of the model's scheduler, by the spec in force."""
        spec = self._spec
        policy = policy_of(spec, spec.model(model), self._home)
        if policy.itl:
            policy = with_starts(policy, group_costs(spec, self.views_of(model), self._home))
        return policy, binding_of(spec)

    def new_cache(self, settings: CacheSpec | None) -> ResponseCache | None:
        """Raises RuntimeError where an extra is missing."""
        if settings is None:
            return None
        encoder = None if settings.semantic is None else self.dispatchers.get(settings.semantic.model)
        return ResponseCache(settings, None if encoder is None else partial(embed, self.session, encoder))

    def _may_serve(self, tenant: Tenant | None, traffic_class: TrafficClass) -> bool:
        """Whether the residency of both allows this cell."""
        allowed = (traffic_class.residency, None if tenant is None else tenant.residency)
        return all(regions is None or self._home.name in regions for regions in allowed)

    def peered(self) -> tuple[ClusterSpec, str]:
        """The spec in force, and the name of this cell."""
        return self._spec, self._home.name

    def is_served(self, model: str) -> bool:
        """Whether a replica of the model takes requests."""
        return self.dispatchers[model].is_ready

    def dispatcher_of(self, name: str) -> Dispatcher:
        """The dispatcher of the model or adapter that a client names; of the only model where it names none. Raises
        ApiError."""
        name = name or (self.served_names[0] if len(self.dispatchers) == 1 else "")
        dispatcher = self._served.get(name)
        if not name:
            message = f"model: missing, and it is required where several are served: {', '.join(self.served_names)}"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="model")
        if dispatcher is None:
            raise not_served(name, self.served_names)
        return dispatcher

    def _fallback(
        self, asked: Model, inquiry: Inquiry, traffic_class: TrafficClass, ledger: Ledger, client: Connection
    ) -> Fallback | None:
        """The model that may answer in the place of `asked`: to it the request means the same, and is not too long."""
        to = asked.fallback_of(traffic_class.name) if asked.fallback else None
        if to is None or inquiry.prompt_ids or inquiry.model not in ("", asked.name, *asked.aliases):
            return None
        dispatcher = self.dispatchers[to]
        context = dispatcher.longest_context
        longest = dispatcher.ratio.max_tokens(inquiry.prompt_chars, 0) + (inquiry.max_tokens or 1)
        if longest > context or not means_the_same(inquiry.kind, client.body, asked, dispatcher.model):
            return None
        request = partial(self._request, inquiry, dispatcher.model, ledger, traffic_class, len(client.given_body))
        return Fallback(self, dispatcher, request)

    def _request(
        self, inquiry: Inquiry, model: Model, ledger: Ledger, traffic_class: TrafficClass, body_bytes: int
    ) -> Request:
        context = self.dispatchers[model.name].longest_context
        inquiry.check_limits(context, self.settings.limits.max_sequences)
        ratio = self.dispatchers[model.name].ratio
        prompt = min(context, ratio.tokens(inquiry.prompt_chars, inquiry.prompt_ids))
        if inquiry.prompt_logprobs:
            inquiry.check_prompt_logprobs(prompt, self.settings.limits.max_prompt_logprobs)
        open_ended = inquiry.max_tokens is None and self.dispatchers[model.name].context_tokens > 0
        ledger.prompt_chars, ledger.expected_prompt_tokens, ledger.max_tokens = (
            inquiry.prompt_chars,
            prompt,
            inquiry.max_tokens,
        )
        now = time.monotonic()
        return Request(
            request_id=ledger.attempt_id,
            prompt_tokens=prompt,
            max_tokens=None
            if open_ended
            else min(context - prompt, context if inquiry.max_tokens is None else inquiry.max_tokens),
            arrived_s=now,
            deadline_s=now + traffic_class.ttft_ms / 1e3,
            expires_s=now + self._patience_s[traffic_class.name],
            sequences=inquiry.sequences,
            traffic_class=traffic_class.name,
            tenant=ledger.tenant,
            prefix=inquiry.prefix,
            digest=ledger.digest,
            chunk_tokens=CHUNK_IDS if inquiry.prompt_ids else max(1, round(CHUNK_CHARS / ratio.chars_per_token)),
            max_prompt_tokens=ratio.max_tokens(inquiry.prompt_chars, inquiry.prompt_ids),
            body_bytes=body_bytes,
        )

    async def _fail(self, client: Connection, error: ApiError | None) -> None:
        """Tells the client, in the way that is still open: an HTTP error, an SSE event, or (nobody to tell) a dropped
        connection."""
        if error is None:
            client.cut()
            return
        await client.fail(error, self.settings.timeouts.client_stall_s)

    def _close(self, ledger: Ledger) -> None:
        done = ledger.usage
        if ledger.peer is not None:
            if ledger.finished is not None:
                self.dispatchers[ledger.model].peer_finished(ledger.finished)
            elif ledger.outcome is RequestOutcome.OK:
                ledger.decide(RequestVerdict.ESTIMATED, "max_age_s", time.monotonic(), peer=ledger.peer)
        elif done is not None and done.sequences > 0 and ledger.model in self.dispatchers:
            ratio = self.dispatchers[ledger.model].ratio
            ratio.observe(ledger.prompt_chars, round(done.prompt_tokens / done.sequences))
        self._on_closed(ledger)
        tell, ledger.on_closed = ledger.on_closed, None
        if tell is not None:
            tell()


def _check_task(model: Model, endpoint: Endpoint) -> None:
    if endpoint.task not in (ModelTask.ANY, model.task):
        message = (
            f"model = {model.name!r}: its task is {model.task!r}, but {endpoint.path} needs a model whose task is "
            f"{endpoint.task.value!r}"
        )
        raise ApiError(ErrorCode.UNSUPPORTED, message, param="model")


def outcome_of(ledger: Ledger) -> RequestOutcome:
    """The outcome of an answer that was sent to its end, which may be an error."""
    if ledger.error is None:
        return RequestOutcome.OK
    return RequestOutcome.REFUSED if 400 <= ledger.status < 500 else RequestOutcome.FAILED


def new_ledger(scope: Scope, path: str, tracing: Tracing | None = None, of_peer: bool = False) -> Ledger:
    """A ledger with the client's X-Request-Id if it is printable and of at most 128 characters, else a new one; with
    `tracing`, in its trace."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    attempt_id = uuid.uuid4().hex
    request_id = given.decode() if _REQUEST_ID.fullmatch(given) else attempt_id
    return Ledger(
        request_id=request_id,
        attempt_id=attempt_id,
        path=path,
        arrived_s=time.monotonic(),
        arrived_unix_s=time.time(),
        trace=None if tracing is None else context_of(scope["headers"], tracing, of_peer),
    )
