"""Pages that the gateway serves as vLLM does, where the spec allows them: load, tokenizer, paths below a root path."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.gateway.entrance import digest_of
from deployments.gateway.operators.report import GatewayAnswer
from tests.deployments.gateway.fake_engine import FakeEngine, raw, waiting, whole
from tests.deployments.gateway.rig import MakeRig, Rig, until


def a_model(name: str, **extra: bool) -> dict[str, Any]:
    return {"name": name, "source": "/nowhere", "settings": {"max_model_len": 1_024, "extra": extra}}


TRACKED = {"enable_server_load_tracking": True}
TOLD = {"enable_tokenizer_info_endpoint": True}


async def test_load_counts_what_is_under_way_in_the_cell(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, models=[a_model("demo", **TRACKED), a_model("other", **TRACKED), a_model("third")])
    engine = await rig.add(FakeEngine(max_num_seqs=1))
    release = asyncio.Event()
    engine.behave = waiting(release)
    assert await rig.get("/load") == (200, {"server_load": 0})
    asked = [asyncio.create_task(rig.ask()) for _ in range(3)]  # of which two wait in the lane
    await until(lambda: engine.open == 1 and len(rig.dispatcher) == 3)
    assert await rig.get("/load") == (200, {"server_load": 3})
    assert await rig.get("/load?model=demo") == (200, {"server_load": 3})
    assert await rig.get("/load?model=other") == (200, {"server_load": 0})
    assert (await rig.get("/load?model=third"))[0] == 404
    assert (await rig.get("/load?model=none"))[1]["error"]["code"] == "model_not_found"
    release.set()
    await asyncio.gather(*asked)
    assert await rig.get("/load") == (200, {"server_load": 0})


async def test_load_asks_the_other_gateways(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make_rig(models=[a_model("demo", **TRACKED)])

    async def ask(path: str, kind: type[Any]) -> list[GatewayAnswer]:
        assert (path, kind) == ("/raylane/status?here=1", GatewayAnswer)
        own = rig.gateway._status.here()
        (demo,) = own.report.models
        models = (replace(demo, under_way=5), replace(demo, name="unlike", under_way=7))
        return [replace(own, report=replace(own.report, models=models))]

    monkeypatch.setattr(rig.gateway.others, "ask", ask)
    assert await rig.get("/load") == (200, {"server_load": 5})


async def test_tokenizer_info_is_the_engines(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2, models=[a_model("demo", **TOLD)])
    info = {"tokenizer_class": "Fast", "chat_template": "{{ x }}"}
    for engine in rig.engines:
        engine.behave = whole(json.dumps(info).encode())
    assert await rig.get("/tokenizer_info") == (200, info)
    assert await rig.get("/tokenizer_info?model=demo") == (200, info)
    assert (await rig.get("/tokenizer_info?model=none"))[1]["error"]["code"] == "model_not_found"
    (seen, _) = [seen for engine in rig.engines for seen in engine.seen]
    assert (seen.path, seen.headers["authorization"]) == ("/tokenizer_info", "Bearer the-secret")
    rig.engines[0].behave = raw(b"nonsense")
    for _ in range(2):
        assert await rig.get("/tokenizer_info") == (200, info)
    rig.engines[1].behave = whole(b'{"error": {"message": "no tokenizer"}}', status=501)
    status, body = await rig.get("/tokenizer_info")
    assert (status, body["error"]["code"], body["error"]["message"]) == (500, "engine_error", "no tokenizer")
    for engine in rig.engines:
        engine.behave = raw(b"nonsense")
    assert (await rig.get("/tokenizer_info"))[1]["error"]["code"] == "no_replica"


async def test_tokenizer_info_has_a_deadline(make_rig: MakeRig) -> None:
    rig = await make_rig(models=[a_model("demo", **TOLD)], timeouts={"first_byte_s": 0.2})
    rig.engines[0].behave = waiting(asyncio.Event())
    status, body = await rig.get("/tokenizer_info")
    assert (status, body["error"]["code"]) == (504, "first_byte_timeout")


async def test_what_the_spec_does_not_allow_is_not_served(rig: Rig) -> None:
    for path, setting in (
        ("/load", "enable_server_load_tracking"),
        ("/tokenizer_info", "enable_tokenizer_info_endpoint"),
    ):
        status, body = await rig.get(path)
        assert (status, body["error"]["code"]) == (404, "not_found")
        assert setting in body["error"]["message"]
    assert not rig.engines[0].seen


async def test_whose_tokenizer_must_be_said(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, models=[a_model("demo", **TOLD), a_model("other", **TOLD)])
    status, body = await rig.get("/tokenizer_info")
    assert (status, body["error"]["param"]) == (400, "model")


async def test_paths_are_served_below_the_root_path_too(make_rig: MakeRig) -> None:
    rig = await make_rig(root_path="/llm/eu", tenants=[{"name": "search", "keys": [digest_of("key")]}])
    given = {"authorization": "Bearer key"}
    for root in ("", "/llm/eu"):
        assert (await rig.get(root + "/v1/models", **given))[0] == 200
        assert (await rig.get(root + "/health"))[0] == 200
        assert (await rig.ask(path=root + "/v1/completions", headers=given))[0] == 200
        assert (await rig.ask(path=root + "/v1/completions", headers={"authorization": "Bearer wrong"}))[0] == 401
        assert (await rig.get(root + "/raylane/status", **given))[0] == 401
    for path in ("/llm/eu", "/llm/v1/models", "/llm/eux/v1/models", "/llm/eu/llm/eu/v1/models"):
        assert (await rig.get(path, **given))[0] == 404
    assert {seen.path for seen in rig.engines[0].seen} == {"/v1/completions"}
