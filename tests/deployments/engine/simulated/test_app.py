"""vLLM's HTTP face over a simulated engine, over real HTTP, behind the production replica's door."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from deployments.engine.replica import ReplicaServer
from deployments.engine.simulated.ask import CHUNK_TOKENS
from deployments.protocol import SIMULATED_HEADER
from tests.deployments.engine.simulated.conftest import SECRET, STEP_S

Make = Callable[..., Awaitable[ReplicaServer]]
CHAT = {"model": "m-simulated", "messages": [{"role": "user", "content": "x" * 296}], "max_tokens": 20}
PROMPT_TOKENS = 100
"""Of CHAT: 296 characters and the role's 4, three a token."""


async def chat(
    session: aiohttp.ClientSession, path: str = "/v1/chat/completions", **fields: Any
) -> tuple[int, dict[str, Any]]:
    async with session.post(path, json={**CHAT, **fields}) as response:
        assert response.headers[SIMULATED_HEADER] == "true"
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    assert response.content_type == "text/event-stream"
    *found, done = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in found]


async def test_a_whole_answer(session: aiohttp.ClientSession) -> None:
    began = time.monotonic()
    status, answer = await chat(session)
    assert status == 200
    assert time.monotonic() - began >= 20 * STEP_S
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == (
        "chat.completion",
        "m-simulated",
        "raylane-simulated",
    )
    (choice,) = answer["choices"]
    assert len(choice["message"]["content"].split()) == 20
    assert choice["finish_reason"] == "length"
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 20,
        "total_tokens": PROMPT_TOKENS + 20,
        "prompt_tokens_details": None,
    }


async def test_a_stream_comes_in_chunks_and_in_time(session: aiohttp.ClientSession) -> None:
    began = time.monotonic()
    async with session.post(
        "/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    ) as response:
        assert response.headers[SIMULATED_HEADER] == "true"
        raw = await response.content.read()
    took_s = time.monotonic() - began
    *found, done, end = raw.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *chunks, usage = [json.loads(event.removeprefix("data: ")) for event in found]
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert [len(text.split()) for text in texts] == [1, 8, 8, 3]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 20
    _, whole = await chat(session)
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert took_s >= 19 * STEP_S  # from the asking on: a busy client may see the first piece late
    assert all(chunk["system_fingerprint"] == "raylane-simulated" for chunk in chunks)


async def test_completions_of_several_prompts_and_choices(session: aiohttp.ClientSession) -> None:
    body = {"model": "m-simulated", "prompt": ["abc" * 10, "abc" * 20], "n": 2, "max_tokens": 5}
    async with session.post("/v1/completions", json=body) as response:
        answer = await response.json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(len(choice["text"].split()) == 5 for choice in answer["choices"])
    async with session.post("/v1/completions", json={**body, "stream": True}) as response:
        chunks = await events(response)
    ends = {chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]}
    assert ends == {0, 1, 2, 3}


async def test_ids_count_as_they_are(session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/completions", json={"model": "m-simulated", "prompt": [1, 2, 3, 4, 5]}) as response:
        answer = await response.json()
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 16)


@pytest.mark.whole
async def test_the_length_of_an_answer_without_a_bound_is_drawn_by_its_seed(session: aiohttp.ClientSession) -> None:
    async def length(**fields: Any) -> int:
        _, answer = await chat(session, max_tokens=None, **fields)
        return int(answer["usage"]["completion_tokens"])

    drawn = await asyncio.gather(*(length(seed=seed) for seed in (1, 1, 2, 3)))
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    assert await length(min_tokens=7) == 7


@pytest.mark.parametrize("prompt", ["one two " * 200, list(range(500)), [list(range(500))]])
async def test_prompts_of_one_salt_share_the_prefix_cache_and_others_do_not(
    session: aiohttp.ClientSession, prompt: Any
) -> None:
    """As vLLM's do, chat or completion: whole chunks, and never the last token."""

    async def cached(**salt: str) -> int:
        body = {"model": "m-simulated", "prompt": prompt, "max_tokens": 1, **salt}
        async with session.post("/v1/completions", json=body) as response:
            return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    whole = 7 * CHUNK_TOKENS if isinstance(prompt, list) else 8 * CHUNK_TOKENS
    assert [await cached(), await cached(), await cached(cache_salt="a"), await cached(cache_salt="b")] == [
        0,
        whole,
        0,
        0,
    ]
    assert [await cached(cache_salt="a"), await cached(cache_salt="b"), await cached()] == [whole] * 3


@pytest.mark.parametrize(
    ("path", "fields", "status", "reported"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 13_000}]},
            400,
            "maximum context length is 4096",
        ),
        ("/v1/chat/completions", {"max_tokens": 0}, 400, "max_tokens"),
        ("/v1/chat/completions", {"model": "other"}, 404, "other"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/responses", {}, 404, "not served by a simulated engine"),
    ],
)
async def test_refusals_are_worded_as_vllm_words_them(
    session: aiohttp.ClientSession, path: str, fields: dict[str, Any], status: int, reported: str
) -> None:
    got, answer = await chat(session, path, **fields)
    assert got == status
    assert reported in answer["error"]["message"]
    assert answer["error"]["code"] == status


async def test_the_tokenizer_agrees_with_the_usage(session: aiohttp.ClientSession) -> None:
    async with session.post("/tokenize", json={"model": "m-simulated", "messages": CHAT["messages"]}) as response:
        assert (await response.json())["count"] == PROMPT_TOKENS
    async with session.post("/tokenize", json={"prompt": "one two three", "return_token_strs": True}) as response:
        reported = await response.json()
    assert len(reported["tokens"]) == reported["count"] == len(reported["token_strs"])
    async with session.post("/detokenize", json={"tokens": reported["tokens"]}) as response:
        assert len((await response.json())["prompt"].split()) == reported["count"]


async def test_it_says_what_it_is(session: aiohttp.ClientSession) -> None:
    async with session.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert (card["id"], card["owned_by"], card["simulated"]) == ("m-simulated", "raylane-simulated", True)
    async with session.get("/metrics") as response:
        shown = await response.text()
    assert 'vllm:num_requests_running{model_name="m-simulated"} 0.0' in shown
    assert 'raylane_engine_state{state="ready"} 1.0' in shown
    async with session.get("/health") as response:
        assert response.status == 200


async def test_speed(make_replica: Make) -> None:
    fast = await make_replica(speed=100)
    async with aiohttp.ClientSession(fast.facts.url, headers={"Authorization": f"Bearer {SECRET}"}) as session:
        began = time.monotonic()
        await chat(session, max_tokens=1_000)
    assert time.monotonic() - began < 1_000 * STEP_S / 2


@pytest.mark.whole
def test_a_simulated_replica_needs_neither_vllm_nor_torch_nor_numpy() -> None:
    """Forty of them share one machine: what each imports, each pays for."""
    heavy = ("vllm", "torch", "transformers", "numpy", "scipy", "aiohttp", "ray")
    program = (
        "import sys, deployments.engine.replica, deployments.engine.simulated.backend; print([name for name in "
        f"{heavy} if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )
