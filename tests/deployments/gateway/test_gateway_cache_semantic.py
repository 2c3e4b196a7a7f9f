"""Kept answers to first turns that are alike: in shadow, and given."""

import asyncio
import json
import math
import re
import time
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import SemanticSpec
from deployments.gateway import semantic
from deployments.gateway.entrance import digest_of
from deployments.gateway.semantic import Key, Probe, SemanticIndex, Vector
from deployments.openai.meaning import FirstTurn
from tests.deployments.gateway.fake_engine import FakeEngine, good, waiting, whole
from tests.deployments.gateway.rig import MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_cache import ask

SETTINGS = {"max_model_len": 1_024}
MODELS = [
    {"name": "demo", "source": "/nowhere", "settings": SETTINGS},
    {"name": "encoder", "source": "/nowhere", "settings": SETTINGS, "task": "embed"},
]
TENANTS = [{"name": name, "keys": [digest_of(name)]} for name in ("a", "b")]
WORDS = {"how": 0.3, "do": 0.1, "i": 0.1, "can": 0.1, "reset": 1.0, "change": 0.9, "my": 0.1, "password": 2.0}
PATH = "/v1/chat/completions"


def vector_of(text: str) -> list[float]:
    """Words and their weights; words that are not listed weigh little."""
    found = np.zeros(16)
    for word in re.findall(r"[\w']+", text.lower()):
        found[[*WORDS, word].index(word)] += WORDS.get(word, 0.2)
    return [float(one) for one in found]


async def encode(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": [{"index": 0, "embedding": vector_of(body["input"])}]})


def chat(text: str, system: str = "Be short.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return {"model": "demo", "messages": messages, "temperature": 0, **more}


FIRST, ALIKE = chat("How do I reset my password"), chat("How can I reset my password?")


async def rig_of(make_rig: MakeRig, **settings: Any) -> Rig:
    cache = {"semantic": {"model": "encoder", **settings}}
    rig = await make_rig(engines=0, cache=cache, models=MODELS, tenants=TENANTS)
    encoder = FakeEngine("encoder", "embed")
    encoder.behave = encode
    await rig.add(encoder)
    await rig.add(FakeEngine())
    return rig


async def what(rig: Rig, body: dict[str, Any], tenant: str = "a", path: str = PATH) -> str:
    """What the cache did, once nothing is looked for any more."""
    found = (await ask(rig, body, path, authorization=f"Bearer {tenant}"))[0]
    await until(lambda: not looking(rig))
    return found


def looking(rig: Rig) -> int:
    """So many first turns are looked for in shadow."""
    assert rig.service.cache is not None
    assert rig.service.cache._semantic is not None
    return len(rig.service.cache._semantic._looking)


async def test_in_shadow_it_only_counts(make_rig: MakeRig) -> None:
    rig = await rig_of(make_rig, threshold=0.9)
    assert [await what(rig, one) for one in (FIRST, ALIKE, ALIKE)] == ["miss", "miss", "hit"]
    encoder, engine = rig.engines
    assert len(engine.seen) == 2
    assert [json.loads(one.body)["input"] for one in encoder.seen] == [one["messages"][1]["content"] for one in
                                                                       (FIRST, ALIKE)]  # fmt: skip
    text = await rig.page("/metrics")
    assert 'raylane_cache_shadow_hits_total{model="demo"} 1.0' in text
    assert 'raylane_cache_similarity_ratio_count{marks="equal",model="demo"} 1.0' in text


async def test_no_request_waits_for_a_shadow(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantic, "_EMBED_S", 20.0)
    rig, held = await rig_of(make_rig, threshold=0.9), asyncio.Event()
    rig.engines[0].behave = waiting(held, encode)
    assert (await ask(rig, FIRST, PATH, authorization="Bearer a"))[0] == "miss"
    assert looking(rig) == 1
    held.set()
    await until(lambda: not looking(rig))
    assert await what(rig, ALIKE) == "miss"
    assert 'raylane_cache_shadow_hits_total{model="demo"} 1.0' in await rig.page("/metrics")


async def test_a_look_up_outlives_a_cache_that_is_turned_off(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semantic, "_EMBED_S", 20.0)
    rig, held = await rig_of(make_rig, threshold=0.9, serve=True), asyncio.Event()
    await ask(rig, FIRST, PATH, authorization="Bearer a")
    rig.engines[0].behave = waiting(held, encode)
    again = asyncio.create_task(ask(rig, ALIKE, PATH, authorization="Bearer a"))
    await until(lambda: rig.engines[0].open)
    spec = rig.service.spec
    rig.service.configure(spec.model_copy(update={"gateway": spec.gateway.model_copy(update={"cache": None})}))
    held.set()
    assert (await again)[0] == "alike"


async def test_what_is_alike_is_answered_where_it_may(make_rig: MakeRig) -> None:
    rig = await rig_of(make_rig, threshold=0.9, serve=True)
    first = await ask(rig, FIRST, PATH, authorization="Bearer a")
    again = await ask(rig, ALIKE, PATH, authorization="Bearer a")
    assert (first[0], again[0], again[1]) == ("miss", "alike", first[1])
    decision = rig.closed[-1].decisions[0]
    assert (decision.reason, 0.9 < float(str(decision.facts["similarity"])) < 1.0) == ("alike", True)
    assert len(rig.engines[1].seen) == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    "other",
    [
        chat("How can I change my password?"),
        chat("How can I not reset my password?"),
        chat("How can I reset my 2 password?"),
        chat("How can I reset my password, Alice?"),
        chat("How can I reset my password?", system="Be long."),
        chat("How can I reset my password?", seed=1),
        chat("How can I reset my password?", stream=True),
        chat("How can I reset my password?", tools=[]),
    ],
)
async def test_what_differs_by_more_is_not(make_rig: MakeRig, other: dict[str, Any]) -> None:
    rig = await rig_of(make_rig, threshold=0.97, serve=True)
    await what(rig, FIRST)
    assert await what(rig, other) == "miss"
    assert await what(rig, ALIKE) == "alike"


async def test_neither_another_tenant_nor_a_later_turn_nor_a_new_version_gets_it(make_rig: MakeRig) -> None:
    rig = await rig_of(make_rig, threshold=0.9, serve=True)
    await what(rig, FIRST)
    assert await what(rig, ALIKE, "b") == "miss"
    later = [*FIRST["messages"], {"role": "assistant", "content": "So."}, ALIKE["messages"][1]]
    assert await what(rig, {**ALIKE, "messages": later}) == "miss"
    _, old = rig.engines
    await rig.add(FakeEngine(version="two"))
    await old.leave()
    await until(lambda: not rig.uses(old))
    assert await what(rig, ALIKE) == "miss"


async def test_without_an_encoder_an_engine_answers(make_rig: MakeRig) -> None:
    rig = await rig_of(make_rig, threshold=0.9, serve=True)
    encoder = rig.engines[0]
    await what(rig, FIRST)
    for fails in (whole(b"{}", status=400), whole(b'{"data": []}'), whole(b"no JSON"), waiting(asyncio.Event())):
        encoder.behave = fails
        assert await what(rig, chat(f"How can I reset my password {fails}?")) == "miss"
    encoder.behave = good
    await encoder.leave()
    await until(lambda: not rig.uses(encoder))
    assert await what(rig, ALIKE) == "miss"


def test_who_serves_with_it_hears_what_was_measured() -> None:
    assert SemanticSpec(model="encoder", threshold=0.9).doubt is None
    doubt = SemanticSpec(model="encoder", threshold=0.9, serve=True).doubt
    assert doubt is not None
    assert "5.3% were wrong on other pairs, and 4% of what means the same" in doubt


KEYS = st.tuples(st.sampled_from(["one", "two"]), st.sampled_from([b"p", b"q", b"r"]))
TURNS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([b"rest", b"other"]),
    st.sampled_from(["now", "not now", "now 2"]),
    st.integers(0, 3),
)


@pytest.mark.whole
@given(st.lists(st.tuples(TURNS, KEYS), max_size=30), TURNS, st.sets(KEYS), st.sampled_from([{"one"}, {"two"}, set()]))
def test_nothing_crosses(kept: list[tuple[Any, Key]], asked: Any, gone: set[Key], versions: set[str]) -> None:
    index = SemanticIndex(SemanticSpec(model="encoder"), no_vector, lambda key: key not in gone)

    def probe(turn: Any) -> Probe:
        tenant, rest, text, angle = turn
        vector = np.array([math.cos(angle / 10), math.sin(angle / 10)], np.float32)
        return Probe("demo", tenant, "interactive", FirstTurn(text, rest), vector=vector)

    last: dict[tuple[str, Key], Any] = {}
    for turn, key in kept:
        index.add(probe(turn), key)
        last[turn[0], key] = turn
    found = index.nearest(probe(asked), versions)
    fitting = {
        key: math.cos((turn[3] - asked[3]) / 10)
        for (_, key), turn in last.items()
        if turn[:3] == asked[:3] and key not in gone and key[0] in versions
    }
    if found is None:
        assert not fitting
    else:
        similarity, key = found
        assert similarity == pytest.approx(fitting[key], abs=2e-3)
        assert similarity >= max(fitting.values()) - 2e-3


async def no_vector(text: str, traffic_class: str) -> Vector | None:
    return None


async def test_a_text_that_is_too_long_for_the_encoder_holds_up_no_other_request() -> None:
    index = SemanticIndex(SemanticSpec(model="encoder", serve=True, threshold=0.9), no_vector, lambda key: True)
    text, began_s = "How can I reset my password? " * 150_000, time.thread_time()
    probe = Probe("demo", "t", "c", FirstTurn(text, b"rest"))
    assert await index.look(probe, {"one"}) is None
    index.add(probe, ("one", b"key"))
    assert time.thread_time() - began_s < 0.05
    assert index.nearest(probe, {"one"}) is None


def test_the_index_forgets_what_is_not_kept_any_more() -> None:
    alive: set[Key] = set()
    index = SemanticIndex(SemanticSpec(model="encoder"), no_vector, alive.__contains__)
    for number in range(1_000):
        key = ("one", str(number).encode())
        alive = {*list(alive)[-9:], key}
        index._is_kept = alive.__contains__
        turn = FirstTurn("x", b"rest")
        index.add(Probe("demo", f"t{number % 3}", "c", turn, vector=np.array([1.0, number], np.float32)), key)
        index.prune(len(alive))
        assert sum(len(one) for one in index._indexes.values()) <= 2 * len(alive) + 64
