"""The load: the client that sends it as lightly as it can, since it shares its cores with everything that it measures;
and the same in the simulator.

Each request is a streamed chat whose `min_tokens` tells the simulated engine where to end; the gateway gets no bound
and has to guess, as with real clients. (`raylane bench`'s client parses every event, and tells nothing of headers.)
"""

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from numpy.typing import NDArray

from cluster.spec import ClusterSpec
from deployments.engine.simulated.costs import read_costs
from planning.simulation import Simulation, simulation_of
from planning.simulator.workload import plain_workload
from planning.workload.trace import Trace

_CODE = re.compile(rb'"code": ?"(\w+)"')
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
    events: int = 0
    output_tokens: int = 0
    """Of the answers that were whole."""
    errors: Counter[str] = field(default_factory=Counter)


async def run(url: str, model: str, schedule: Trace) -> Answers:
    """Sends all, on time, and returns when the last answer has ended."""
    count = len(schedule)
    answers = Answers(np.full(count, np.nan), np.zeros(count), [""] * count)
    filler = _FILLER * (int(schedule.prompt_tokens.max()) * _CHARS_PER_TOKEN // len(_FILLER) + 1)
    connector, timeout = aiohttp.TCPConnector(limit=0, keepalive_timeout=30), aiohttp.ClientTimeout(total=_TIMEOUT_S)
    columns = (column.tolist() for column in (schedule.arrived_s, schedule.prompt_tokens, schedule.output_tokens))
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for index, (at_s, prompt_tokens, output_tokens) in enumerate(zip(*columns, strict=True)):
                body = _body(model, index, prompt_tokens, output_tokens, filler)
                await asyncio.sleep(max(0.0, started_s + at_s - time.monotonic()))
                answers.late_s[index] = time.monotonic() - started_s - at_s
                group.create_task(_one(session, body, index, output_tokens, answers))
    return answers


async def _one(session: aiohttp.ClientSession, body: bytes, index: int, output_tokens: int, answers: Answers) -> None:
    sent_s, last = time.monotonic(), b""
    try:
        async with session.post("/v1/chat/completions", data=body) as response:
            if response.status != 200:
                code = _CODE.search(await response.read())
                answers.errors[f"{response.status} {code[1].decode() if code else '?'}"] += 1
                return
            answers.lane[index] = response.headers.get("x-raylane-lane", "")
            async for piece in response.content.iter_any():
                if not last and piece.startswith(b":"):  # it waits
                    continue
                if not last:
                    answers.ttft_s[index] = time.monotonic() - sent_s
                answers.events += piece.count(b"data: {")
                last = piece
    except (aiohttp.ClientError, TimeoutError) as error:
        answers.errors[type(error).__name__] += 1
        return
    if not last.endswith(b"data: [DONE]\n\n") or b'data: {"error"' in last:
        answers.errors["broken stream"] += 1
        return
    answers.output_tokens += output_tokens


def _body(model: str, index: int, prompt_tokens: int, output_tokens: int, filler: str) -> bytes:
    """Every prompt begins with its number: none shares a prefix with another."""
    content = (f"{index:08d} " + filler)[: max(1, prompt_tokens * _CHARS_PER_TOKEN - _ROLE_CHARS)]
    messages = [{"role": "user", "content": content}]
    fields = {"model": model, "messages": messages, "min_tokens": output_tokens, "stream": True}
    return json.dumps(fields, separators=(",", ":")).encode()


def simulation(spec: ClusterSpec, schedule: Trace) -> Simulation:
    """The spec's only model under the same load."""
    (model,) = spec.models
    lengths = (schedule.arrived_s, schedule.prompt_tokens, schedule.output_tokens)
    work = plain_workload(*lengths, spec.classes[0].ttft_ms / 1e3, bounded=False)
    return simulation_of(spec, model, {view.group: read_costs(view) for view in model.views}, work, None, False)
