"""One streamed request against a real HTTP server, and every way in which it can go wrong."""

import asyncio
import json
import socket
from typing import Any

import pytest

from cli.bench.answer import FailureKind, Sample
from cli.bench.client import BenchClient, EndpointError


async def send(url: str, model: str, timeout_s: float = 10.0, **fields: Any) -> Sample:
    """The sample of one completion request."""
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, "stream": True} | fields
    async with BenchClient(url, "completions", stream=bool(body["stream"]), timeout_s=timeout_s) as client:
        return await client.send(json.dumps(body).encode())


async def test_a_good_stream_is_measured(server: Any) -> None:
    sample = await send(server.url, "good")
    assert sample.failure is None
    assert sample.events == 4
    assert sample.usage is not None
    assert (sample.usage.prompt_tokens, sample.usage.output_tokens) == (3, 4)
    assert sample.ttft_s is not None
    assert 0 < sample.ttft_s < sample.e2e_s
    assert len(sample.gaps_s) == 3


async def test_slow_chunks_show_in_the_times(server: Any) -> None:
    sample = await send(server.url, "slow")
    assert sample.failure is None
    # Bounds from below: on a busy machine everything may be late.
    assert sample.ttft_s is not None
    assert sample.decode_s is not None
    assert sample.ttft_s > 0.09
    assert sample.gaps_s[0] > sample.gaps_s[1]
    assert sample.decode_s > 0.2
    assert sample.e2e_s > sample.ttft_s + sample.decode_s + 0.05


async def test_a_whole_answer_has_usage_and_no_first_token(server: Any) -> None:
    sample = await send(server.url, "good", stream=False)
    assert sample.failure is None
    assert sample.ttft_s is None
    assert sample.usage is not None
    assert (sample.usage.output_tokens, sample.usage.cached_tokens) == (4, 3)


@pytest.mark.parametrize(
    ("model", "kind", "label"),
    [
        ("refused", FailureKind.HTTP, "HTTP 503 queue_full"),
        ("bare_error", FailureKind.HTTP, "HTTP 502"),
        ("error_event", FailureKind.STREAM_ERROR, "error event in the stream replica_lost"),
        ("named_error_event", FailureKind.STREAM_ERROR, "error event in the stream gone"),
        ("silent_end", FailureKind.ENDED_EARLY, "stream ended without [DONE]"),
        ("cut_off", FailureKind.ENDED_EARLY, "stream ended without [DONE]"),
        ("no_tokens", FailureKind.NO_TOKENS, "no token in the answer"),
    ],
)
async def test_failures_are_told_apart(server: Any, model: str, kind: FailureKind, label: str) -> None:
    sample = await send(server.url, model)
    assert sample.failure is not None
    assert (sample.failure.kind, sample.failure.label) == (kind, label)


async def test_a_request_over_its_time_fails(server: Any) -> None:
    sample = await send(server.url, "hanging", timeout_s=0.3)
    assert sample.failure is not None
    assert sample.failure.kind is FailureKind.TIMEOUT


async def test_a_closed_port_is_a_failed_request_and_an_unusable_endpoint() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    sample = await send(url, "good")
    assert sample.failure is not None
    assert sample.failure.kind is FailureKind.CONNECT
    async with BenchClient(url, "completions") as client:
        with pytest.raises(EndpointError, match="cannot be reached"):
            await client.first_model()


async def test_the_key_is_sent_and_the_url_may_end_in_v1(server: Any) -> None:
    async with BenchClient(server.url + "/v1", "completions", api_key="abc") as client:
        assert await client.first_model() == "good"
        await client.send(b'{"model": "good", "prompt": "a", "max_tokens": 1, "stream": true}')
    assert server.headers[0]["Authorization"] == "Bearer abc"


async def test_cancelling_a_request_is_not_swallowed(server: Any) -> None:
    task = asyncio.create_task(send(server.url, "hanging"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
