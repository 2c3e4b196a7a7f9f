"""The load, and a client that sends it as lightly as it can: it shares its cores with everything that it measures.

Arrivals and lengths come from a recorded trace, repeated for as long as it takes. Each request is a
streamed chat whose `min_tokens` tells the simulated engine where to end; the gateway gets no bound and has to guess,
as with real clients. (`raylane bench`'s client parses every event, and tells nothing of headers and pieces.)
"""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from numpy.typing import NDArray

from planning.workload.scaling import scale_lengths, scale_to_fit
from planning.workload.trace import Trace


def traced(trace: Trace, duration_s: float, load_scale: float, max_model_len: int) -> Trace:
    """`load_scale` times the trace's rate for so long, from its beginning again where it ends; lengths fitted to the
    context."""
    gap_s = trace.arrived_s[-1] / max(1, len(trace.arrived_s) - 1)
    period_s = float(trace.arrived_s[-1] + gap_s) / load_scale
    rounds = max(1, int(np.ceil(duration_s / period_s)))
    arrived = np.concatenate([trace.arrived_s / load_scale + number * period_s for number in range(rounds)])
    scale = scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len)
    prompt, output = (
        np.tile(scale_lengths(tokens, scale), rounds) for tokens in (trace.prompt_tokens, trace.output_tokens)
    )
    kept = arrived < duration_s
    return Trace(arrived[kept], prompt[kept], output[kept])


_CHARS_PER_TOKEN = 3
"""As the simulated engine counts (`deployments/engine/simulated/ask.py`)."""
_ROLE_CHARS = 4
_FILLER = "lorem ipsum dolor sit amet "
_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Answers:
    """What came back, by request. NaN: no token came."""

    ttft_s: NDArray[np.float64]
    late_s: NDArray[np.float64]
    """How late this client sent it: not in its TTFT."""
    lane: list[str]
    pieces: int = 0
    events: int = 0
    output_tokens: int = 0
    """Of the answers that were whole."""
    errors: Counter[str] = field(default_factory=Counter)
    unmarked: int = 0
    """Answers without the mark of a simulated engine."""


async def run(url: str, model: str, schedule: Trace) -> Answers:
    """Sends all, on time, and returns when the last answer has ended."""
    count = len(schedule)
    answers = Answers(np.full(count, np.nan), np.zeros(count), [""] * count)
    longest = int(schedule.prompt_tokens.max()) * _CHARS_PER_TOKEN
    filler = (_FILLER * (longest // len(_FILLER) + 1))[:longest]
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                due = started + float(schedule.arrived_s[index])
                body = _body(
                    model, index, int(schedule.prompt_tokens[index]), int(schedule.output_tokens[index]), filler
                )
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                answers.late_s[index] = time.monotonic() - due
                group.create_task(
                    _one(
                        session, url + "/v1/chat/completions", body, index, int(schedule.output_tokens[index]), answers
                    )
                )
    return answers


async def _one(
    session: aiohttp.ClientSession, url: str, body: bytes, index: int, output: int, answers: Answers
) -> None:
    sent_s, last = time.monotonic(), b""
    try:
        async with session.post(url, data=body) as response:
            if response.status != 200:
                answers.errors[f"{response.status} {_code(await response.read())}"] += 1
                return
            answers.lane[index] = response.headers.get("x-raylane-lane", "")
            answers.unmarked += "x-raylane-simulated" not in response.headers
            async for piece in response.content.iter_any():
                if not last and piece.startswith(b":"):  # it waits
                    continue
                if not last:
                    answers.ttft_s[index] = time.monotonic() - sent_s
                answers.pieces += 1
                answers.events += piece.count(b"data: {")
                last = piece
    except (aiohttp.ClientError, TimeoutError) as error:
        answers.errors[type(error).__name__] += 1
        return
    if not last.endswith(b"data: [DONE]\n\n") or b'data: {"error"' in last:
        answers.errors["broken stream"] += 1
        return
    answers.output_tokens += output


def _body(model: str, index: int, prompt_tokens: int, output_tokens: int, filler: str) -> bytes:
    """Every prompt begins with its number: none shares a prefix with another."""
    content = (f"{index:08d} " + filler)[: max(1, prompt_tokens * _CHARS_PER_TOKEN - _ROLE_CHARS)]
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "min_tokens": output_tokens,
        "stream": True,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _code(payload: bytes) -> str:
    try:
        return str(json.loads(payload)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "?"
