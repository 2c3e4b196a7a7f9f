"""Tenants and the engines' prefix cache: a salt of its own for each, which no client can choose, and hashes for the
scheduler's credit to match."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json

from cluster.spec import ClusterSpec
from deployments.gateway.entrance import digest_of
from deployments.openai.endpoints import ENDPOINTS, BodyKind
from deployments.openai.fields import with_member
from deployments.openai.inquiry import Inquiry, read_inquiry
from deployments.openai.prefix import Salts
from tests.deployments.gateway.rig import ASK, CHAT, MakeRig, Rig, make_spec

TENANTS: list[dict[str, Any]] = [{"name": name, "keys": [digest_of(f"key-{name}")]} for name in ("a", "b")]
ALLOWED = re.compile(r"[^@/\\\0]{1,128}")
"""What vLLM takes for a salt."""
NAMES = st.sampled_from([b'"cache_salt"', rb'"cache\u005fsalt"', rb'"\u0063ache_salt"', b'"other"', b'"Cache_salt"'])
VALUES = st.sampled_from([b'"mine"', b"null", b"7", b'"}"', b"{}", b'{"cache_salt":"}"}', b'[{"cache_salt":1}]'])


def spec_of(**fields: Any) -> ClusterSpec:
    return make_spec(8_000, {}, {}, **{"tenants": TENANTS, **fields})


def inquiry(tenant: int, body: Any, spec: ClusterSpec | None = None, secret: str = "s") -> Inquiry:
    """What is read of a chat for the first or second tenant."""
    spec = spec or spec_of()
    return read_inquiry(BodyKind.CHAT, json.dumps(body).encode(), salt_of=Salts(spec, secret).of(spec.tenants[tenant]))


async def sent(rig: Rig, key: str, body: bytes, path: str = "/v1/completions") -> bytes:
    """The body that the engine got."""
    count = len(rig.engines[0].seen)
    status, payload = await rig.ask(body, path, headers={"authorization": f"Bearer {key}"})
    assert status == 200, payload
    assert len(rig.engines[0].seen) == count + 1
    return rig.engines[0].seen[-1].body


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4), st.sampled_from([b"", b" \n", b"\r\n\t "]))
@example([(b'"cache_salt"', b'"mine"'), (rb'"cache\u005fsalt"', b'"too"')], b" ")
def test_ours_is_the_salt_that_every_parser_finds(members: list[tuple[bytes, bytes]], end: bytes) -> None:
    body = b"{" + b",".join([b'"model" : "m"', *(name + b": " + value for name, value in members)]) + b" }" + end
    salted = with_member(body, "cache_salt", "ours")
    assert salted.startswith(body.rstrip()[:-1])
    for parse in (json.loads, from_json, msgspec.json.decode):
        assert parse(salted) == {**parse(body), "cache_salt": "ours"}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(tenants=TENANTS)


async def test_each_tenants_requests_reach_the_engine_with_a_salt_of_its_own(rig: Rig) -> None:
    body = b' {"model" : "demo", "prompt": "caf\xc3\xa9 \\u00e9", "max_tokens": 3, "cache_salt": null } \n'
    got = {key: [await sent(rig, key, body) for _ in range(2)] for key in ("key-a", "key-b")}
    for first, second in got.values():
        assert first == second
        assert first.startswith(body.rstrip()[:-1])
        assert ALLOWED.fullmatch(json.loads(first)["cache_salt"])
    assert json.loads(got["key-a"][0])["cache_salt"] != json.loads(got["key-b"][0])["cache_salt"]


async def test_every_endpoint_that_runs_on_the_engine_is_salted(rig: Rig) -> None:
    bodies = {
        BodyKind.CHAT: CHAT,
        BodyKind.COMPLETION: ASK,
        BodyKind.RESPONSE: {"model": "demo", "input": "x"},
        BodyKind.TOKENIZER: ASK,
    }
    for endpoint in ENDPOINTS:
        if endpoint.body in bodies:
            body = await sent(rig, "key-a", json.dumps(bodies[endpoint.body]).encode(), endpoint.path)
            assert ("cache_salt" in json.loads(body)) is endpoint.leased, endpoint.path
    salt_of = Salts(spec_of(), "s").of(spec_of().tenants[0])
    assert read_inquiry(BodyKind.EMBEDDING, b'{"model":"m","input":"x"}', salt_of=salt_of).cache_salt is not None


async def test_a_salt_of_the_clients_own_sets_apart_within_its_tenant_only(rig: Rig) -> None:
    a, b = [json.loads(await sent(rig, key, json.dumps(ASK).encode()))["cache_salt"] for key in ("key-a", "key-b")]
    salts = {a, b}
    for given_salt in ("mine", a, b, "a", "b"):  # also one that it saw somewhere, or guesses by a name
        for key in ("key-a", "key-b"):
            body = json.dumps({**ASK, "cache_salt": given_salt}).encode()
            salt = json.loads(await sent(rig, key, body))["cache_salt"]
            assert salt not in salts
            assert ALLOWED.fullmatch(salt)
            salts.add(salt)
            assert json.loads(await sent(rig, key, body))["cache_salt"] == salt


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b", 5, [], True])
async def test_a_salt_that_vllm_would_refuse_is_refused(rig: Rig, salt: Any) -> None:
    status, error = await rig.error({**ASK, "cache_salt": salt}, headers={"authorization": "Bearer key-a"})
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "cache_salt")
    assert "1 to 128 characters" in error["message"]
    assert not rig.engines[0].seen


async def test_with_sharing_or_without_tenants_bodies_are_left_alone(make_rig: MakeRig) -> None:
    for spec in ({"tenants": TENANTS, "prefix_sharing": "cluster"}, {}):
        rig = await make_rig(**spec)
        for body in (ASK, {**ASK, "cache_salt": "mine"}):
            raw = json.dumps(body).encode() + b"\n"
            assert await sent(rig, "key-a", raw) == raw


async def test_sharing_changes_while_the_cell_runs(rig: Rig) -> None:
    body = json.dumps(ASK).encode()
    before = await sent(rig, "key-a", body)
    rig.service.configure(rig.service.spec.model_copy(update={"prefix_sharing": "cluster"}))
    assert await sent(rig, "key-a", body) == body
    rig.service.configure(rig.service.spec.model_copy(update={"prefix_sharing": "tenant"}))
    assert await sent(rig, "key-a", body) == before != body


def test_only_the_cluster_can_make_a_salt() -> None:
    chat = {**CHAT, "messages": [{"role": "user", "content": "one " * 500}]}
    salts = {inquiry(tenant, chat, secret=secret).cache_salt for tenant in (0, 1) for secret in ("s", "t")}
    assert len(salts) == 4
    assert not any(name in str(salt) for salt in salts for name in ("key", "s\0a"))


def test_the_schedulers_hashes_are_salted_alike() -> None:
    chat = {**CHAT, "messages": [{"role": "user", "content": "one " * 500}]}
    ids = {"model": "m", "prompt": list(range(500)), "messages": chat["messages"]}
    for body in (chat, ids):
        mine, other = inquiry(0, body).prefix, inquiry(1, body).prefix
        assert mine
        assert mine == inquiry(0, body).prefix
        assert not set(mine) & set(other)
        assert not set(mine) & set(inquiry(0, {**body, "cache_salt": "x"}).prefix)
        shared = spec_of(prefix_sharing="cluster")
        assert inquiry(0, body, shared).prefix == inquiry(1, body, shared).prefix
        assert not set(inquiry(0, body, shared).prefix) & set(inquiry(0, {**body, "cache_salt": "x"}, shared).prefix)
