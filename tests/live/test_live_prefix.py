"""Tenants beside each other on one engine: what one sent is in nobody else's prefix cache, by the engine's own counts
and by the clock."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from deployments.gateway.entrance import digest_of
from tests.live.clients import clients
from tests.live.cluster import LiveCluster, eventually_async, held, local_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

KEYS = {name: {"authorization": f"Bearer key-{name}"} for name in ("victim", "attacker")}
CONTEXT = 1_024
PROMPT_TOKENS = 1_000
TRIALS = 320
"""So many that an AUC of 0.5 has an interval of 0.09."""
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 2},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
    "/v1/chat/completions/batch": lambda text: {"messages": [[{"role": "user", "content": text}]], "max_tokens": 2},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 2},
    "/invocations": lambda text: {"prompt": text, "max_tokens": 2},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """One replica, two tenants."""
    spec = local_spec(1, max_model_len=CONTEXT, max_num_seqs=8, kv_cache_memory_bytes=128 << 20)
    spec["tenants"] = [{"name": name, "keys": [digest_of(f"key-{name}")]} for name in KEYS]
    with held(tmp_path_factory.mktemp("prefix"), "prefix", spec) as live:
        yield live


async def ask(session: aiohttp.ClientSession, cluster: LiveCluster, who: str, path: str, body: dict[str, Any]) -> int:
    """Asks, and returns how many tokens of the prompt the engine had cached, by its own count; the client is told the
    same."""
    name = uuid.uuid4().hex
    async with session.post(
        cluster.url + path, json={"model": "demo", **body}, headers={**KEYS[who], "x-request-id": name}
    ) as response:
        assert response.status == 200, await response.read()
        usage = (await response.json())["usage"]
    await eventually_async(lambda: any(record["request_id"] == name for record in cluster.records()), every_s=0.05)
    record = next(record for record in cluster.records() if record["request_id"] == name)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    told = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    assert path.endswith("/batch") or (told or 0) == record["cached_tokens"], path
    return int(record["cached_tokens"])


async def test_no_tenant_finds_anothers_prompt_cached(cluster: LiveCluster) -> None:
    draw = random.Random(1)
    for path, body_of in BODIES.items():
        body = body_of(" ".join(draw.choices(WORDS, k=280)))
        async with clients() as session:
            assert await ask(session, cluster, "victim", path, body) == 0, path
            assert await ask(session, cluster, "victim", path, body) > 200, path
            assert await ask(session, cluster, "attacker", path, body) == 0, path
            assert await ask(session, cluster, "attacker", path, body) > 200, path
            assert await ask(session, cluster, "victim", path, {**body, "cache_salt": "mine"}) == 0, path
            assert await ask(session, cluster, "attacker", path, {**body, "cache_salt": "mine"}) == 0, path
            assert await ask(session, cluster, "victim", path, {**body, "cache_salt": "mine"}) > 200, path


async def ttft_s(session: aiohttp.ClientSession, cluster: LiveCluster, who: str, prompt: list[int]) -> float:
    """The time to a streamed completion's first byte."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 1, "stream": True}
    began = time.perf_counter()
    async with session.post(cluster.url + "/v1/completions", json=body, headers=KEYS[who]) as response:
        assert response.status == 200
        await response.content.readany()
        took_s = time.perf_counter() - began
        await response.read()
    return took_s


def auc(quick: Any, slow: Any) -> float:
    """The probability that a draw of `quick` is below one of `slow`; a tie counts half."""
    ordered = np.sort(slow)
    below = np.searchsorted(ordered, quick, "left")
    tied = np.searchsorted(ordered, quick, "right") - below
    return float((len(ordered) - below - tied / 2).mean() / len(ordered))


def interval(quick: Any, slow: Any, seed: int = 0) -> tuple[float, float]:
    """The AUC's 95 % interval, by 4,000 draws of whole trials with replacement."""
    draw, first, second = np.random.default_rng(seed), np.asarray(quick), np.asarray(slow)
    found = [auc(first[chosen], second[chosen]) for chosen in draw.integers(0, len(first), (4_000, len(first)))]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


async def test_no_clock_tells_what_another_tenant_sent(cluster: LiveCluster, tell: list[str]) -> None:
    """The attack: send a prompt that somebody may have sent, and see whether it is quick. Against the victim's own
    second time, which is."""
    draw = random.Random(2)
    prompt = lambda: [draw.randrange(10, 4_000) for _ in range(PROMPT_TOKENS)]  # noqa: E731
    sent, fresh, own = [], [], []
    async with clients() as session:
        for trial in range(TRIALS + 20):
            theirs, nobodys = prompt(), prompt()
            await ttft_s(session, cluster, "victim", theirs)
            probes = [(sent, theirs), (fresh, nobodys)]
            draw.shuffle(probes)
            for times, probe in probes:
                times.append(await ttft_s(session, cluster, "attacker", probe))
            own.append(await ttft_s(session, cluster, "victim", theirs))
            if trial == 19:  # those warmed up
                for times in (sent, fresh, own):
                    times.clear()
    await asyncio.to_thread(cluster.settle)
    others, others_range = auc(sent, fresh), interval(sent, fresh)
    mine, mine_range = auc(own, fresh), interval(own, fresh)
    tell.append(
        f"another tenant's: AUC {others:.3f} ({others_range[0]:.3f} to {others_range[1]:.3f}); its own: {mine:.3f} "
        f"(from {mine_range[0]:.3f})"
    )
    tell.append(
        f"medians: fresh {np.median(fresh) * 1e3:.1f} ms, another's {np.median(sent) * 1e3:.1f} ms, its own "
        f"{np.median(own) * 1e3:.1f} ms"
    )
    assert 0.4 <= others_range[0] <= others_range[1] <= 0.6
    assert mine_range[0] > 0.9
