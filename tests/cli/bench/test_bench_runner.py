"""Closed and open loops against a real server."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from cli.bench.client import BenchClient
from cli.bench.load import BenchLoad, closed_loop, drawn_load, run
from cli.bench.prompts import Prompts, RequestOptions, TokenIds
from cli.bench.results import RunRecord
from planning.workload.lengths import Fixed


async def outcome(url: str, load: BenchLoad, model: str = "good", stop: asyncio.Event | None = None) -> RunRecord:
    record = RunRecord()
    async with BenchClient(url, "completions") as client:
        await run(client, Prompts(TokenIds((1, 2, 3)), RequestOptions(model, "completions"), 0), load, record, stop)
    return record


async def test_a_closed_loop_sends_every_request_once(server: Any) -> None:
    record = await outcome(server.url, drawn_load(Fixed(6), Fixed(3), 0, concurrency=8, requests=50))
    assert (record.ok, record.failed, record.unfinished) == (50, 0, 0)
    assert (record.prompt_tokens, record.output_tokens) == (300, 150)
    assert len(server.bodies) == 50


@pytest.mark.whole
async def test_a_closed_loop_holds_its_concurrency(server: Any) -> None:
    await outcome(server.url, drawn_load(Fixed(1), Fixed(3), 0, concurrency=4, requests=12), model="slow")
    assert server.max_open == 4


@pytest.mark.whole
async def test_a_duration_stops_the_sending_and_lets_requests_end(server: Any) -> None:
    record = await outcome(server.url, drawn_load(Fixed(1), Fixed(3), 0, concurrency=2, duration_s=0.6), model="slow")
    assert 2 <= record.ok <= 4
    assert record.unfinished == 0
    assert record.elapsed_s > 0.5


async def test_an_open_loop_does_not_wait_for_answers(server: Any) -> None:
    load = BenchLoad(np.array([1]), np.array([3]), np.arange(10) * 0.02, None, 10, None)
    record = await outcome(server.url, load, model="slow")
    assert record.ok == 10
    assert server.max_open > 5
    assert len(record.late_s) == 10
    assert min(record.late_s) >= 0


async def test_failures_do_not_end_a_run(server: Any) -> None:
    record = await outcome(server.url, drawn_load(Fixed(1), Fixed(1), 0, concurrency=3, requests=9), model="silent_end")
    assert (record.ok, record.failed) == (0, 9)


@pytest.mark.parametrize(("model", "answered"), [("good", 9), ("refused", 0)])
async def test_only_answers_count_as_what_a_closed_loop_got_through(server: Any, model: str, answered: int) -> None:
    prompts = Prompts(TokenIds((1,)), RequestOptions(model, "completions"), 0)
    async with BenchClient(server.url, "completions") as client:
        ended = await closed_loop(client, prompts, drawn_load(Fixed(1), Fixed(1), 0, concurrency=3, requests=9))
    assert len(ended) == answered


async def test_stopping_cuts_open_requests_off_and_counts_them(server: Any) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    started = time.monotonic()
    record = await outcome(
        server.url, drawn_load(Fixed(1), Fixed(1), 0, concurrency=5, requests=50), model="hanging", stop=stop
    )
    assert time.monotonic() - started < 3
    assert (record.ended, record.unfinished) == (0, 5)


async def test_an_error_of_the_program_is_not_hidden(server: Any) -> None:
    with pytest.raises(ExceptionGroup):
        await outcome(server.url, BenchLoad(np.empty(0, np.int64), np.empty(0, np.int64), None, 1, 1, None))
