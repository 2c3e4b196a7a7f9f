"""Closed and open loops against a real server."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from cli.bench.client import Client
from cli.bench.load import Extent, Load, Pace, drawn_load, play
from cli.bench.prompts import Prompts, RequestOptions, TokenIds
from cli.bench.record import Record
from planning.workload.lengths import Fixed


async def played(url: str, load: Load, model: str = "good", stop: asyncio.Event | None = None) -> Record:
    record = Record()
    async with Client(url, "completions") as client:
        await play(client, Prompts(TokenIds((1, 2, 3)), RequestOptions(model, "completions"), 0), load, record, stop)
    return record


async def test_a_closed_loop_sends_every_request_once(server: Any) -> None:
    record = await played(server.url, drawn_load(Fixed(6), Fixed(3), Pace(concurrency=8), Extent(requests=50), 0))
    assert (record.ok, record.failed, record.unfinished) == (50, 0, 0)
    assert (record.prompt_tokens, record.output_tokens) == (300, 150)
    assert len(server.bodies) == 50


@pytest.mark.whole
async def test_a_closed_loop_holds_its_concurrency(server: Any) -> None:
    await played(server.url, drawn_load(Fixed(1), Fixed(3), Pace(concurrency=4), Extent(requests=12), 0), model="slow")
    assert server.most_open == 4


@pytest.mark.whole
async def test_a_duration_stops_the_sending_and_lets_requests_end(server: Any) -> None:
    record = await played(server.url, drawn_load(Fixed(1), Fixed(3), Pace(concurrency=2), Extent(duration_s=0.6), 0), model="slow")
    assert 2 <= record.ok <= 4
    assert record.unfinished == 0
    assert record.elapsed_s > 0.5


async def test_an_open_loop_does_not_wait_for_answers(server: Any) -> None:
    load = Load(np.array([1]), np.array([3]), np.arange(10) * 0.02, None, 10, None)
    record = await played(server.url, load, model="slow")
    assert record.ok == 10
    assert server.most_open > 5
    assert len(record.late_s.values) == 10
    assert record.late_s.values.min() >= 0


async def test_failures_do_not_end_a_run(server: Any) -> None:
    record = await played(server.url, drawn_load(Fixed(1), Fixed(1), Pace(concurrency=3), Extent(requests=9), 0), model="silent_end")
    assert (record.ok, record.failed) == (0, 9)


async def test_stopping_cuts_open_requests_off_and_counts_them(server: Any) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    started = time.monotonic()
    record = await played(server.url, drawn_load(Fixed(1), Fixed(1), Pace(concurrency=5), Extent(requests=50), 0), model="hanging", stop=stop)
    assert time.monotonic() - started < 3
    assert (record.ended, record.unfinished) == (0, 5)


async def test_an_error_of_the_program_is_not_hidden(server: Any) -> None:
    with pytest.raises(ExceptionGroup):
        await played(server.url, Load(np.empty(0, np.int64), np.empty(0, np.int64), None, 1, 1, None))
