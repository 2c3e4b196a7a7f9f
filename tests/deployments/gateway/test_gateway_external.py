"""The external tier: a real second server, which fails in all ways, and what a tenant may spend there."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import PICO, External, Model, Tenant, TrafficClass
from deployments.accounting.bill import BillLine, TimeShare
from deployments.accounting.store import bill_in
from deployments.gateway import external
from deployments.gateway.entrance import digest_of
from deployments.gateway.external import FAILURES, OPEN_S, Breaker, route_of
from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import read_inquiry
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import CHAT, EXTERNAL_KEY, MakeRig, Rig, until

KEY = "rl-acme"
TENANTS = [{"name": name, "keys": [digest_of(key)]} for name, key in (("acme", KEY), ("other", "rl-other"))]
CLASSES = [{"name": "hasty", "ttft_ms": 500, "patience_s": 60}]
AS_ACME = {"authorization": f"Bearer {KEY}", "x-client": "secret-of-the-client", "cookie": "a=b", "user-agent": "mine"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
IN, OUT = 2_000_000, 8_000_000
"""Picodollars for a token."""


def event(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


CHUNK = {"model": "theirs-2026", "choices": [{"delta": {"content": "hi"}}], "usage": None}
END = {"model": "theirs-2026", "choices": [], "usage": USAGE}


@dataclass
class Service:
    """An OpenAI-compatible service. `status`, `delay_s`, `breaks`: how it fails."""

    status: int = 200
    delay_s: float = 0.0
    breaks: bool = False
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    holds: bool = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(({name.lower(): value for name, value in request.headers.items()}, body))
        await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if not body.get("stream"):
            return web.json_response({"model": "theirs-2026", "choices": [{}], "usage": USAGE})
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-theirs": "1"})
        await response.prepare(request)
        await response.write(event(CHUNK))
        if self.holds:
            await self.release.wait()
        if self.breaks:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(event(CHUNK) + event(END)[:20])
        await response.write(event(END)[20:] + event(b"[DONE]"))
        return response


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, str]]:
    one, app = Service(), web.Application()
    app.router.add_post("/v1/chat/completions", one.answer)
    async with TestServer(app) as server:
        yield one, str(server.make_url("/v1"))
        one.release.set()


def section(url: str, **changes: Any) -> dict[str, Any]:
    prices = {"usd_per_mtok_in": IN / 1e6, "usd_per_mtok_out": OUT / 1e6}
    return {"url": url, "models": {"demo": "theirs"}, "tenants": {"acme": 1.0}, **prices, **changes}


async def with_service(make_rig: MakeRig, url: str, **changes: Any) -> Rig:
    """A model without a replica, and a service outside."""
    rig = await make_rig(0, tenants=TENANTS, classes=CLASSES, external=section(url, **changes))
    await until(lambda: rig.dispatcher.owner is not None)
    return rig


@pytest.fixture
async def outside(make_rig: MakeRig, service: tuple[Service, str]) -> tuple[Service, Rig]:
    return service[0], await with_service(make_rig, service[1])


async def asked(rig: Rig, **changes: Any) -> tuple[int, bytes]:
    return await rig.ask({**CHAT, **changes}, "/v1/chat/completions", headers=AS_ACME)


def external_line(rig: Rig) -> BillLine:
    with rig.directory.store.reading() as file:
        (line,) = [one for one in bill_in(file).lines if one.key.share is TimeShare.EXTERNAL]
    return line


def taken(rig: Rig) -> int:
    return rig.directory.costs.spending.taken("acme")


async def waits_at_home(rig: Rig, body: Any = CHAT, headers: Any = AS_ACME) -> tuple[int, str]:
    """Its status, once it waits in the lane and a replica has come."""
    waits = asyncio.create_task(rig.ask(body, "/v1/chat/completions", headers=headers))
    await until(lambda: rig.owner.scheduler.lanes.jobs)
    engine = await rig.add(FakeEngine())
    status, _ = await waits
    ledger = await rig.last(len(rig.closed) or 1)
    await engine.kill()
    rig.engines.remove(engine)
    await rig.directory.deregister(engine.facts.replica_id)
    await until(lambda: not rig.owner.scheduler.fleet.by_id)
    return status, ledger.degraded[0].said if ledger.degraded else ""


@pytest.mark.parametrize("stream", [False, True])
async def test_the_service_answers_where_nothing_else_does(outside: tuple[Service, Rig], stream: bool) -> None:
    there, rig = outside
    body = {**CHAT, "stream": stream, "user": "me", "cache_salt": "mine"}
    status, answer, answered = await rig.answered(body, "/v1/chat/completions", headers=AS_ACME)
    assert (status, "x-theirs" in answered) == (200, False)
    assert answered["x-raylane-degraded"] == "fallback; model=demo; to=external; reason=patience"
    assert b"theirs-2026" in answer
    assert (b'"completion_tokens"' in answer) is not stream, "who did not ask for a stream's usage does not get it"
    ((headers, asked),) = there.seen
    assert headers["authorization"] == f"Bearer {EXTERNAL_KEY}"
    assert headers.keys() <= {"host", "authorization", "content-type", "content-length", "accept", "accept-encoding"}
    assert asked == {
        "model": "theirs",
        "messages": CHAT["messages"],
        "max_tokens": 3,
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}),
    }
    assert taken(rig) > 11 * IN + 3 * OUT, "reserved, until its end is reported"
    await rig.settled()
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) == 11 * IN + 4 * OUT
    line = external_line(rig)
    assert (line.key.tenant, line.key.traffic_class, line.key.model) == ("acme", "hasty", "demo")
    assert line.usd * PICO == 11 * IN + 4 * OUT
    ledger = await rig.last()
    assert [one.verdict for one in ledger.decisions] == ["rejected", "external"]
    assert await rig.samples("raylane_external_requests_total") == {'{model="demo",outcome="answered"}': 1}


async def test_a_stream_with_usage_keeps_it(outside: tuple[Service, Rig]) -> None:
    _, rig = outside
    _, answer = await asked(rig, stream=True, stream_options={"include_usage": True})
    assert answer == event(CHUNK) * 2 + event(END) + event(b"[DONE]")


async def test_a_budget_is_never_gone_beyond(make_rig: MakeRig, service: tuple[Service, str]) -> None:
    there, url = service
    one = sum(External.model_validate(section(url)).pico_usd(100, 3)) / PICO  # a body of 100 bytes or so
    rig = await with_service(make_rig, url, tenants={"acme": 5.5 * one})
    budget, there.holds = round(5.5 * one * PICO), True
    asking = [asyncio.create_task(asked(rig, stream=True, seed=n)) for n in range(8)]
    await until(lambda: there.seen and len(rig.owner.scheduler.lanes.jobs) + len(there.seen) == 8)
    assert 0 < len(there.seen) < 8
    assert 0 < taken(rig) <= budget
    there.release.set()
    await rig.add(FakeEngine())
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}
    await rig.settled()
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) == len(there.seen) * (11 * IN + 4 * OUT)


async def test_what_a_killed_gateway_had_reserved_stays_reserved(outside: tuple[Service, Rig]) -> None:
    there, rig = outside
    there.holds = True
    asking = asyncio.create_task(asked(rig, stream=True))
    await until(lambda: there.seen)
    reserved = taken(rig)
    rig.gateway._costs.spent = lambda usage: None  # type: ignore[method-assign]  # what a killed one cannot report
    assert rig.service.external is not None
    rig.service.external._report = lambda usage: None
    asking.cancel()
    await rig.last()
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) == reserved > 0


async def test_the_breaker_opens_and_closes(outside: tuple[Service, Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    there, rig = outside
    there.status = 500
    for number in range(FAILURES + 2):
        assert await waits_at_home(rig) == (200, "")
        assert len(there.seen) == min(number + 1, FAILURES)
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) == 0, "an error costs nothing"
    there.status = 200
    monkeypatch.setattr(external, "OPEN_S", 0.0)
    assert rig.service.external is not None
    rig.service.external._breaker._until_s = 0.0
    assert (await asked(rig))[0] == 200
    assert len(there.seen) == FAILURES + 1


async def test_a_refusal_shows_that_the_service_is_there(outside: tuple[Service, Rig]) -> None:
    there, rig = outside
    for number in range(2 * FAILURES):
        there.status = 400 if number == FAILURES - 1 else 500
        assert await waits_at_home(rig) == (200, "")
    assert len(there.seen) == 2 * FAILURES, "failures in a row count"


async def test_a_service_that_does_not_answer_in_time_is_left(make_rig: MakeRig, service: tuple[Service, str]) -> None:
    there, url = service
    rig = await with_service(make_rig, url, timeout_s=0.2)
    there.delay_s = 1.0
    assert await waits_at_home(rig) == (200, "")
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) > 0, "it may have worked all the same"


async def test_a_stream_that_breaks_ends_with_an_error(outside: tuple[Service, Rig]) -> None:
    there, rig = outside
    there.breaks = True
    status, answer = await asked(rig, stream=True)
    assert (status, b"the external service broke off its answer" in answer) == (200, True)
    reserved = taken(rig)
    await rig.settled()
    await rig.gateway._costs._turn(watch=True)
    assert taken(rig) == reserved > 0
    line = external_line(rig)
    assert (line.amounts.estimated, line.amounts.requests) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({}, {"authorization": "Bearer rl-other"}),
        ({}, {"x-raylane-fallback": "never"}),
        ({"logprobs": True}, {}),
        ({"top_k": 3}, {}),
    ],
)
async def test_what_never_leaves(
    outside: tuple[Service, Rig], changes: dict[str, Any], headers: dict[str, str]
) -> None:
    there, rig = outside
    assert await waits_at_home(rig, {**CHAT, **changes}, {**AS_ACME, **headers}) == (200, "")
    assert not there.seen
    assert taken(rig) == 0


REGIONS = st.none() | st.lists(st.sampled_from(["eu", "us", "ap"]), min_size=1, unique=True).map(tuple)


@pytest.mark.whole
@given(REGIONS, REGIONS, REGIONS, st.sampled_from([None, "eu", "us"]))
def test_nothing_crosses_residency(
    model: tuple[str, ...] | None,
    traffic_class: tuple[str, ...] | None,
    tenant: tuple[str, ...] | None,
    region: str | None,
) -> None:
    body = json.dumps(CHAT).encode()
    settings = {"max_model_len": 100}
    route = route_of(
        External.model_validate(section("https://api.example.com/v1", region=region)),
        read_inquiry(BodyKind.CHAT, body),
        body,
        Model.model_validate({"name": "demo", "source": "s", "settings": settings, "residency": model}),
        TrafficClass.model_validate({"name": "c", "ttft_ms": 500, "residency": traffic_class}),
        Tenant.model_validate({**TENANTS[0], "residency": tenant}),
    )
    allowed = [set(one) for one in (model, traffic_class, tenant) if one is not None]
    assert (route is not None) is all(region in one for one in allowed)


def test_a_breaker_lets_one_try() -> None:
    breaker = Breaker()
    for now in range(FAILURES):
        assert breaker.lets(float(now))
        breaker.ended(False, float(now))
    assert not breaker.lets(FAILURES + 0.5)
    again = FAILURES + OPEN_S
    assert [breaker.lets(again), breaker.lets(again + 1)] == [True, False]
    breaker.ended(True, again + 2)
    assert breaker.lets(again + 2)
    assert breaker.lets(again + 2)
