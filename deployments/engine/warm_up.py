"""What a new engine is asked before it is ready: one request of each kind that a client may send.

The first of a kind can take long (on a fresh machine vLLM compiles the kernel of `logprobs` for 3 to 15 s), and all
others of the engine wait behind it. The requests go through vLLM's own app, so that its templates, parsers and grammars
are warm, too.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cluster.spec import Model

logger = logging.getLogger(__name__)

_PROMPTS = ("1 2 3", "4 5 6", "7 8 9")
_SAMPLED = {
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 8,
    "min_p": 0.05,
    "seed": 1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "min_tokens": 1,
}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    """A request: its path and its body."""

    path: str
    body: dict[str, Any]


def requests_of(model: Model) -> list[WarmUpRequest]:
    """One request of each kind that clients of `model` may send. torch compiles anew for the first batch of several, so
    each kind is asked twice."""
    if model.task == "embed":
        return [
            WarmUpRequest("/v1/embeddings", {"model": model.name, "input": list(prompts)})
            for prompts in (_PROMPTS[:1], _PROMPTS)
        ]
    return list(_generating(model))


def _generating(model: Model) -> Iterator[WarmUpRequest]:
    # vLLM refuses these with speculative decoding.
    refused = {"min_p", "min_tokens", "logit_bias"} if model.settings.speculative else set()
    sampled = {key: value for key, value in _SAMPLED.items() if key not in refused}
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0},
        sampled,
        {"logprobs": 2},
        {"logprobs": 2, "prompt_logprobs": 2},
    )
    for kind in kinds:
        for prompts in (_PROMPTS[:1], _PROMPTS):
            yield WarmUpRequest(
                "/v1/completions",
                {"model": model.name, "prompt": list(prompts), "max_tokens": 3, "ignore_eos": True, **kind},
            )
    message = [{"role": "user", "content": _PROMPTS[0]}]
    tools = {"tools": [_TOOL], "tool_choice": "auto"} if model.settings.tool_call_parser else {}
    for kind in ({"logprobs": True, "top_logprobs": 2}, {"response_format": _SCHEMA}, tools):
        yield WarmUpRequest("/v1/chat/completions", {"model": model.name, "messages": message, "max_tokens": 3, **kind})
    for adapter in model.adapters:
        yield WarmUpRequest("/v1/completions", {"model": adapter.name, "prompt": list(_PROMPTS), "max_tokens": 3})


async def warm_up(app: Any, model: Model) -> None:
    """Asks `app`, an OpenAI app (ASGI), all of it. What it refuses (a model without a chat template, a spec without log
    probabilities) clients cannot have either. Raises RuntimeError at a server's error: nobody could use such an
    engine."""
    for asked in requests_of(model):
        await _answered(app, asked)


async def first_token(app: Any, model: Model) -> None:
    """Asks for one token, as a client may do next: what that takes now is what it will take. Raises RuntimeError as
    `warm_up` does."""
    embeds = model.task == "embed"
    asked: dict[str, Any] = {"input": _PROMPTS[0]} if embeds else {"prompt": _PROMPTS[0], "max_tokens": 1}
    path = "/v1/embeddings" if embeds else "/v1/completions"
    await _answered(app, WarmUpRequest(path, {"model": model.name, **asked}))


async def _answered(app: Any, asked: WarmUpRequest) -> None:
    status, answer = await _ask(app, asked)
    if status >= 500:
        raise RuntimeError(
            f"the engine cannot answer {asked.path} {json.dumps(asked.body)}: {answer[:500].decode(errors='replace')}"
        )
    if status >= 400:
        logger.info("not warmed up: %s answered %d to %s", asked.path, status, json.dumps(asked.body))


async def _ask(app: Any, asked: WarmUpRequest) -> tuple[int, bytes]:
    body = json.dumps(asked.body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": asked.path,
        "raw_path": asked.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
    received = False
    status, answer = 500, b""

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:  # vLLM listens for a client that leaves; this one does not
            await asyncio.Event().wait()
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    await app(scope, receive, send)
    return status, answer
