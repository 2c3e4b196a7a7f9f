"""Kept answers: who gets one, and which are kept."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import CacheSpec
from deployments.gateway.cache import ResponseCache, is_untouched
from deployments.gateway.connection import Recording
from deployments.gateway.entrance import digest_of
from deployments.gateway.operators.cost_reporter import usages_of
from deployments.openai.endpoints import ENDPOINTS
from deployments.openai.meaning import Meaning
from deployments.ownership.replicas import Replicas
from deployments.protocol import Finished, Usage
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.verdicts import RequestVerdict
from tests.deployments.gateway.fake_engine import (
    DONE,
    Behaviour,
    FakeEngine,
    dying,
    event,
    good,
    pieces,
    waiting,
    whole,
)
from tests.deployments.gateway.rig import MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_context import LAX, LONG, counting

ASK: dict[str, Any] = {"model": "demo", "prompt": "one two three", "max_tokens": 3, "temperature": 0}
TENANTS = [
    {"name": "team-a", "keys": [digest_of("key-a")]},
    {"name": "team-b", "keys": [digest_of("key-b")], "requests_per_minute": 3},
]
CACHE = {"max_bytes": 1 << 20}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(cache=CACHE)


async def ask(rig: Rig, body: Any = None, path: str = "/v1/completions", **headers: str) -> tuple[str, bytes, Any]:
    """What the cache did, the answer's body and its headers; once its ledger is complete."""
    closed = len(rig.closed)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, payload, answered = await rig.answered(ASK if body is None else body, path, headers=named)
    assert status == 200, payload
    await rig.last(closed + 1)
    return answered.get("x-raylane-cache", ""), payload, answered


async def test_the_same_request_is_answered_again_without_an_engine(rig: Rig) -> None:
    first, again = await ask(rig), await ask(rig)
    assert (first[0], again[0], again[1]) == ("miss", "hit", first[1])
    assert (again[2]["age"], again[2]["content-type"]) == ("0", first[2]["content-type"])
    assert again[2]["x-request-id"] != first[2]["x-request-id"]
    assert len(rig.engines[0].seen) == 1
    asked, given = rig.closed
    assert (given.outcome, given.status, given.replica_id) == (RequestOutcome.OK, 200, None)
    (decision,) = given.decisions
    assert (decision.verdict, decision.facts["prompt_tokens"], decision.facts["output_tokens"]) == ("cached", 8, 3)
    assert len([*usages_of(asked)]) == 1
    assert [*usages_of(given)] == [], "nothing to bill"
    snapshot = rig.owner.snapshot()
    assert (snapshot.submitted, snapshot.placed) == (1, 1)


async def test_metrics_say_what_was_saved(rig: Rig) -> None:
    for _ in range(4):
        await ask(rig)
    text = await rig.page("/metrics")
    for line in ('lookups_total{model="demo",result="hit"} 3.0', 'lookups_total{model="demo",result="miss"} 1.0'):
        assert f"raylane_cache_{line}" in text
    for kind, tokens in (("in", 24), ("out", 9)):
        assert f'raylane_cache_saved_tokens_total{{kind="{kind}",model="demo"}} {tokens}.0' in text
    assert re.search(r"raylane_cache_bytes 1[0-9]{3}\.0", text)


@pytest.mark.parametrize("heartbeat_s", [0.0, 0.3])
async def test_a_stream_comes_again_as_the_same_events(make_rig: MakeRig, heartbeat_s: float) -> None:
    rig = await make_rig(cache=CACHE, heartbeat_s=heartbeat_s)
    slow = pieces(0.6, event("a"), event("b")[:9], 0.01, event("b")[9:], 0.01, event("c") + DONE)
    rig.engines[0].behave = slow
    body = {**ASK, "stream": True}
    first, again = await ask(rig, body), await ask(rig, body)
    events = event("a") + event("b") + event("c") + DONE
    assert (again[0], again[1]) == ("hit", events)
    assert (first[1] == events) == (heartbeat_s == 0.0), "comments on a wait are no part of the answer"
    assert again[2]["content-type"].startswith("text/event-stream")
    assert "content-length" not in again[2]
    assert (await ask(rig))[0] == "miss", "what is not streamed is another answer"
    rig.engines[0].behave = good


@pytest.mark.whole
@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "one two four"},
        {"max_tokens": 4},
        {"seed": 1},
        {"stop": ["x"]},
        {"temperature": 0.0},
        {"stream": True},
        {"cache_salt": "of-another-user"},
        {"model": None},
        {"of_tomorrow": 1},
    ],
)
async def test_another_request_is_not_answered_by_it(rig: Rig, change: dict[str, Any]) -> None:
    await ask(rig)
    assert (await ask(rig, {**ASK, **change}))[0] == "miss"
    assert (await ask(rig, {**ASK, "user": "somebody", "priority": 3}))[0] == "hit"


async def test_only_what_would_repeat_or_asks_for_it_is_kept(rig: Rig) -> None:
    warm = {**ASK, "temperature": 0.7}
    for _ in range(2):
        assert (await ask(rig, warm))[0] == ""
    assert [(await ask(rig, warm, x_raylane_cache="on"))[0] for _ in range(2)] == ["miss", "hit"]
    status, error = await rig.error(warm, headers={"x-raylane-cache": "off"})
    assert (status, error["param"]) == (400, "X-Raylane-Cache")


async def test_cache_control_passes_by(rig: Rig) -> None:
    await ask(rig, cache_control="no-store")
    assert (await ask(rig))[0] == "miss", "it was not kept"
    fresh = await ask(rig, cache_control="max-age=0, No-Cache")
    assert (fresh[0], len(rig.engines[0].seen)) == ("", 3)
    assert [(await ask(rig, cache_control=one))[0] for one in ("no-store", "", "private")] == ["", "hit", "hit"]


async def test_tenants_share_nothing_and_their_limits_hold(make_rig: MakeRig) -> None:
    rig = await make_rig(cache=CACHE, tenants=TENANTS)
    a, b = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
    assert [(await ask(rig, **who))[0] for who in (a, a, b, b, b)] == ["miss", "hit", "miss", "hit", "hit"]
    status, error = await rig.error(ASK, headers=b)
    assert (status, error["code"]) == (429, "request_limit_exceeded")
    assert (await rig.error(ASK))[0] == 401
    assert len(rig.engines[0].seen) == 2


async def test_an_answer_of_another_version_is_not_given(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, cache=CACHE)
    old = await rig.add(FakeEngine())
    await ask(rig)
    new = await rig.add(FakeEngine(version="two"))
    assert (await ask(rig))[0] == "hit", "the old one might still answer"
    await old.leave()
    await until(lambda: not rig.uses(old))
    assert [(await ask(rig))[0] for _ in range(2)] == ["miss", "hit"]
    assert len(new.seen) == 1
    unknown = FakeEngine(version="")
    await rig.add(unknown)
    await new.leave()
    await until(lambda: not rig.uses(new))
    assert [(await ask(rig))[0] for _ in range(2)] == ["miss", "miss"]


async def test_adapters_are_apart(make_rig: MakeRig) -> None:
    adapters = [{"name": name, "source": "/nowhere"} for name in ("x", "y")]
    settings = {"max_model_len": 1_024}
    model = {"name": "demo", "source": "/nowhere", "settings": settings, "adapters": adapters}
    rig = await make_rig(cache=CACHE, models=[model])
    names = ("demo", "x", "y", "x")
    assert [(await ask(rig, {**ASK, "model": name}))[0] for name in names] == ["miss", "miss", "miss", "hit"]


FAILING: dict[str, Behaviour] = {
    "an error": whole(b'{"object":"error","message":"no","code":400}', status=400),
    "an error in the stream": pieces(event("a"), b'data: {"error": {"message": "broke", "code": 500}}\n\n', DONE),
    "a stream that breaks off": dying(event("a")),
    "a choice that was given up": whole(b'{"choices":[{"text":"a","finish_reason":"abort"}]}'),
    "an empty answer": whole(b""),
}


@pytest.mark.parametrize("fails", FAILING)
async def test_what_is_not_whole_is_not_kept(rig: Rig, fails: str) -> None:
    rig.engines[0].behave = FAILING[fails]
    body = {**ASK, "stream": "stream" in fails}
    await rig.ask(body)
    await rig.last(1)
    rig.engines[0].behave = good
    await until(lambda: rig.uses(rig.engines[0]))
    assert (await ask(rig, body))[0] == "miss"


async def test_an_answer_whose_client_left_is_not_kept(rig: Rig) -> None:
    held = asyncio.Event()
    body = {**ASK, "stream": True}
    rig.engines[0].behave = pieces(event("a"), held, event("b"), DONE)
    client = await rig.connect(body)
    await client.answer_head()
    client.leave()
    await rig.last(1)
    held.set()
    rig.engines[0].behave = good
    assert (await ask(rig, body))[0] == "miss"
    cache = rig.service.cache
    assert cache is not None
    assert cache.size < 2_000, "nothing stays of what was begun"


async def test_without_the_engines_account_nothing_is_kept(rig: Rig) -> None:
    rig.engines[0].tells = False
    assert [(await ask(rig))[0] for _ in range(2)] == ["miss", "miss"]


async def test_a_conversation_that_lost_turns_is_not_kept(make_rig: MakeRig) -> None:
    classes = [{"name": "strict", "ttft_ms": 500}, {"name": "lax", "ttft_ms": 500, "context": "drop_turns"}]
    rig = await make_rig(cache=CACHE, classes=classes)
    rig.engines[0].behave = counting()
    body = {**LONG, "temperature": 0}
    for _ in range(2):
        assert (await ask(rig, body, "/v1/chat/completions", **LAX))[0] == "miss"


async def test_residency_holds(make_rig: MakeRig) -> None:
    elsewhere = {"name": "elsewhere", "ttft_ms": 500, "residency": ["there"]}
    rig = await make_rig(cache=CACHE, classes=[{"name": "here", "ttft_ms": 500}])
    spec = rig.service.spec
    strict = spec.classes[0].model_copy(update=elsewhere)
    rig.service.configure(spec.model_copy(update={"classes": (*spec.classes, strict)}))
    await ask(rig)
    assert (await ask(rig, x_raylane_class="elsewhere"))[0] == ""
    assert (await ask(rig))[0] == "hit"


async def test_a_changed_spec_turns_it_off_at_once(rig: Rig) -> None:
    await ask(rig)
    spec, held = rig.service.spec, asyncio.Event()
    rig.engines[0].behave = waiting(held)
    under_way = asyncio.create_task(ask(rig, {**ASK, "seed": 5}))
    await until(lambda: rig.engines[0].open)
    off = spec.gateway.model_copy(update={"cache": None})
    rig.service.configure(spec.model_copy(update={"gateway": off}))
    held.set()
    await under_way
    rig.engines[0].behave = good
    assert (await ask(rig))[0] == ""
    rig.service.configure(spec)
    assert (await ask(rig))[0] == "miss", "what was kept is gone"


async def test_a_large_body_is_no_other(rig: Rig) -> None:
    body = {"model": "demo", "prompt": "x " * 1_000, "temperature": 0, "of_tomorrow": "y" * 300_000}
    assert [(await ask(rig, body))[0] for _ in range(2)] == ["miss", "hit"]


STEPS = st.tuples(st.sampled_from(["begin", "add", "end"]), st.integers(0, 9), st.integers(0, 70_000))


@pytest.mark.whole
@given(st.lists(STEPS, max_size=80))
def test_it_never_holds_more_than_it_may(steps: list[tuple[str, int, int]]) -> None:
    cache = ResponseCache(CacheSpec(max_bytes=1 << 20))
    replicas = Replicas()
    replicas.up(replace(FakeEngine().facts, replica_id="r"))
    open_: dict[int, Recording] = {}
    for step, which, size in steps:
        if step == "begin" and which not in open_:
            open_[which] = Recording(cache.reserve)
        elif step == "add" and which in open_:
            open_[which].add(b"x" * size)
        elif step == "end" and which in open_:
            cache._judge(Meaning(bytes([which, size % 256]), True), None, open_.pop(which), done(), replicas)
        held = sum(len(one.body or b"") for one in open_.values())
        assert held <= cache.size <= 1 << 20
    for one in open_.values():
        one.give_up()
    assert cache.size == cache._kept.currsize


def done() -> Ledger:
    ledger = Ledger("q", "q-1", "/", 0.0, 0.0, replica_id="r", status=200, outcome=RequestOutcome.OK)
    ledger.finished = Finished("q-1", 200, Usage(8, 0, 3, 0), 0.0, 0.0)
    return ledger


@pytest.mark.parametrize("verdict", RequestVerdict)
def test_what_may_have_touched_an_answer_is_not_kept(verdict: RequestVerdict) -> None:
    ledger = done()
    assert is_untouched(ledger)
    ledger.decide(verdict, "reason", 0.0)
    harmless = {"admitted", "queued", "promoted", "placed", "refused", "resubmitted"}
    assert is_untouched(ledger) == (verdict in harmless)


async def test_what_is_old_is_gone(make_rig: MakeRig) -> None:
    rig = await make_rig(cache={"max_age_s": 0.5})
    cache = rig.service.cache
    assert cache is not None
    await ask(rig)
    assert cache.size > 0
    await until(lambda: cache.size == 0)
    assert (await ask(rig))[0] == "miss"


async def test_a_name_that_is_no_text_is_left_to_the_engine(rig: Rig) -> None:
    body = json.dumps(ASK).encode()[:-1] + b',"\xff":1}'
    status, error = await rig.error(body)
    assert (status, error["code"], len(rig.engines[0].seen)) == (500, "engine_error", 1)


@pytest.mark.parametrize("path", [one.path for one in ENDPOINTS if one.leased and one.task != "embed"])
async def test_each_path_has_its_own_answers(rig: Rig, path: str) -> None:
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "x"}]]},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    }
    body = {"model": "demo", "temperature": 0, **bodies.get(path, {"prompt": "x"})}
    first, again = await ask(rig, body, path), await ask(rig, body, path)
    assert (first[0], again[0], json.loads(again[1])) == ("miss", "hit", json.loads(first[1]))
