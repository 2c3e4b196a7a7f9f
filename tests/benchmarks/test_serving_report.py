"""The comparison's tables, and the contest itself against a small real server that counts."""

import dataclasses
import io
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console

from benchmarks.serving.__main__ import render
from benchmarks.serving.contest import (
    ComparisonPlan,
    ComparisonShape,
    contender,
    contest_point,
    contest_singles,
)
from cli.bench.prompts import TokenIds

pytestmark = pytest.mark.whole

EVENTS = (
    b'data: {"choices":[{"text":"x"}]}\n\n' * 2
    + b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


WHOLE = {"choices": [{"text": "xx"}], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
SHAPE = ComparisonShape(4, 2, rounds=3, round_s=0.05, singles=4, single_every_s=0.01)


async def _contest(stream: bool = True) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    asked: dict[str, list[dict[str, Any]]] = {"ours": [], "rival": []}

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        asked[request.match_info["side"]].append(body)
        return web.Response(body=EVENTS) if body["stream"] else web.json_response(WHOLE)

    app = web.Application()
    app.router.add_post("/{side}/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    plan = ComparisonPlan(dataclasses.replace(SHAPE, stream=stream), "m", TokenIds(tuple(range(1_000))))
    async with contender("ours", f"{url}/ours") as ours, contender("rival", f"{url}/rival") as rival:
        points = [await contest_point(ours, rival, 2, plan)]
        singles = await contest_singles(ours, rival, plan) if stream else None
    await runner.cleanup()
    return {"ours": "ours", "rival": "rival", "points": points, "singles": singles}, asked


async def test_both_sides_get_the_same_prompts_and_no_prompt_twice() -> None:
    found, asked = await _contest()
    prompts = {side: [body["prompt"] for body in bodies] for side, bodies in asked.items()}
    (point,) = found["points"]
    # Each side is warmed up with prompts of its own; a warm-up is two waves of two clients.
    measured = {side: sent[4:] for side, sent in prompts.items()}
    assert sorted(measured["ours"]) == sorted(measured["rival"])
    assert len({tuple(prompt) for prompt in measured["ours"]}) == len(measured["ours"])
    assert [each["first"] for each in point["rounds"]] == ["ours", "rival", "ours"]
    assert all(each[side]["failed"] == 0 for each in point["rounds"] for side in ("ours", "rival"))
    assert point["ratio"]["low"] <= point["ratio"]["median"] <= point["ratio"]["high"]
    assert found["singles"]["ttft_ms"]["ours"]["count"] == 4


async def test_answers_that_are_not_streamed_come_whole() -> None:
    found, asked = await _contest(stream=False)
    rounds = found["points"][0]["rounds"]
    assert all(
        each[side]["failed"] == 0 and each[side]["tokens_per_s"] > 0 for each in rounds for side in ("ours", "rival")
    )
    assert not any(body["stream"] for bodies in asked.values() for body in bodies)


async def test_the_tables_show_ratios_and_machine() -> None:
    found, _ = await _contest()
    machine = {"cores": 2, "processor": "some processor", "load_average": [0.5, 0, 0], "versions": {"vllm": "0.32.0"}}
    console = Console(file=io.StringIO(), width=160)
    console.print(
        render({"machine": machine, "model": "demo", "shape": dataclasses.asdict(SHAPE), "comparisons": [found]})
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{found['points'][0]['ratio']['median']:.3f}" in text
    assert "4 tokens of prompt, 2 of output, streamed" in text
    assert "2 cores of some processor" in text
    assert "0 failed requests" in text
