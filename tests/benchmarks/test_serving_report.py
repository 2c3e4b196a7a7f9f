"""The comparison's tables, and the contest itself against a small real server that counts."""

import io
from typing import Any

from aiohttp import web
from rich.console import Console

from benchmarks.serving.contest import Contender, Plan, Shape, contest_point, contest_singles
from benchmarks.serving.report import render
from cli.bench.client import Client
from cli.bench.vocabulary import TokenIds

EVENTS = b'data: {"choices":[{"text":"x"}]}\n\n' * 2 + b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


async def _contest() -> tuple[dict[str, Any], dict[str, list[list[int]]]]:
    prompts: dict[str, list[list[int]]] = {"ours": [], "rival": []}

    async def answer(request: web.Request) -> web.Response:
        prompts[request.match_info["side"]].append((await request.json())["prompt"])
        return web.Response(body=EVENTS)

    app = web.Application()
    app.router.add_post("/{side}/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    plan = Plan(Shape(4, 2, rounds=3, round_s=0.05, singles=4, single_every_s=0.01), "m", TokenIds(tuple(range(1_000))))
    async with Client(f"{url}/ours", "completions") as ours, Client(f"{url}/rival", "completions") as rival:
        sides = Contender("ours", ours), Contender("rival", rival)
        found = {"ours": "ours", "rival": "rival", "points": [await contest_point(*sides, 2, plan)], "singles": await contest_singles(*sides, plan)}
    await runner.cleanup()
    return found, prompts


async def test_both_sides_get_the_same_prompts_and_no_prompt_twice() -> None:
    found, prompts = await _contest()
    (point,) = found["points"]
    # Each side is warmed up with prompts of its own; a warm-up is two waves of two clients.
    measured = {side: sent[4:] for side, sent in prompts.items()}
    assert sorted(measured["ours"]) == sorted(measured["rival"])
    assert len({tuple(prompt) for prompt in measured["ours"]}) == len(measured["ours"])
    assert [each["first"] for each in point["rounds"]] == ["ours", "rival", "ours"]
    assert all(each[side]["failed"] == 0 for each in point["rounds"] for side in ("ours", "rival"))
    assert point["ratio"]["low"] <= point["ratio"]["median"] <= point["ratio"]["high"]
    assert found["singles"]["ttft_ms"]["ours"]["count"] == 4


async def test_the_tables_show_ratios_and_machine() -> None:
    found, _ = await _contest()
    machine = {"cores": 2, "processor": "some processor", "load_average": [0.5, 0, 0], "versions": {"vllm": "0.32.0"}}
    console = Console(file=io.StringIO(), width=160)
    console.print(render({"machine": machine, "model": "demo", "comparisons": [found]}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{found['points'][0]['ratio']['median']:.3f}" in text
    assert "2 cores of some processor" in text
    assert "0 failed requests" in text
