"""What is watched, on a real cell: every panel has data while it is under load, and alerts with windows of a twelfth
reach Alertmanager and resolve. Metrics of GPUs and drafts are served from a text, since the cell has neither."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.gateway.entrance import digest_of
from tests.http_server import Handler, listening
from tests.infra.test_dashboards import expressions
from tests.live.cluster import LiveCluster, eventually, held, shipped_spec
from tests.live.prometheus import alertmanager, prometheus, samples, shortened
from tests.simulated import simulated_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

SERVED, LATE, KEY = "served-simulated", "late-simulated", "sk-watching"
LIMITS = EngineModelLimits(sequences=8, step_tokens=512, kv_tokens=60_000)
COST = CostModel(line(0.02, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
TWELFTH = 12
CLIENTS = 40
"""On sixteen seats at most: most of them wait for longer than the SLO allows."""
GPUS = """raylane_engine_gpu_utilization_ratio{gpu="0"} 0.83
raylane_engine_gpu_memory_used_bytes{gpu="0"} 6.9e+10
vllm:spec_decode_num_drafts_total %d
vllm:spec_decode_num_accepted_tokens_total %d
"""


def spec_in(folder: Path) -> dict[str, Any]:
    spec = shipped_spec("simulated-h100")
    spec["models"] = [
        simulated_model(name, folder / f"{name}.json", LIMITS, COST, replicas=replicas, owner="team-" + name[:4])
        for name, replicas in ((SERVED, {"count": 1, "min": 1, "max": 2}), (LATE, {"count": 0, "min": 0, "max": 1}))
    ]
    spec["tenants"] = [{"name": "search", "keys": [digest_of(KEY)]}]
    spec["classes"] = [{"name": "interactive", "ttft_ms": 300, "itl_ms": 200}]
    spec["autoscaling"] = {"policy": "backlog", "period_s": 0.5}
    del spec["lanes"]
    return spec


@contextmanager
def gpu_metrics() -> Iterator[dict[str, Any]]:
    """A target of Prometheus, as a replica with a GPU and a draft model would be."""

    class Gpus(Handler):
        def do_GET(self) -> None:
            body = (GPUS % (10 * time.time(), 17 * time.time())).encode()
            self.answer(200, body, {"content-type": "text/plain; version=0.0.4"})

    with listening(Gpus) as url:
        labels = {"cell": "watched", "model": SERVED, "replica": "gpu"}
        yield {"targets": [url.removeprefix("http://")], "labels": labels}


async def load(url: str, until: asyncio.Event) -> None:
    """Clients of which each sends a request when its last one has ended."""
    body = {"model": SERVED, "prompt": "one two three", "max_tokens": 60, "stream": True}

    async def client(session: aiohttp.ClientSession) -> None:
        while not until.is_set():
            async with session.post(url + "/v1/completions", json=body) as response:
                await response.read()

    headers, connector = {"authorization": f"Bearer {KEY}"}, aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))


@contextmanager
def loaded(cluster: LiveCluster) -> Iterator[None]:
    until = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(load(cluster.url, until),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join(120)
        loop.close()


def has_data(url: str, expression: str) -> bool:
    return any(math.isfinite(float(one["value"][1])) for one in samples(url, expression))


def alerts_at(address: str) -> set[tuple[str, str, str]]:
    """By name, severity and owner: those that Alertmanager has now."""
    found = requests.get(f"http://{address}/api/v2/alerts", timeout=10).json()
    return {tuple(one["labels"].get(key, "") for key in ("alertname", "severity", "owner")) for one in found}


def test_panels_have_data_and_alerts_reach_alertmanager_and_resolve(tmp_path: Path, tell: list[str]) -> None:
    burn, failed = ("RaylaneTtftBurns", "page", "team-serv"), ("RaylaneStartsFail", "ticket", "")
    rules, seen = shortened(tmp_path, TWELFTH), set()
    with (
        held(tmp_path, "watched", spec_in(tmp_path)) as cluster,
        gpu_metrics() as gpus,
        alertmanager() as address,
        prometheus(cluster, rules, address, [gpus]) as url,
    ):
        costs = tmp_path / f"{LATE}.json"
        kept = costs.read_text()
        eventually(
            lambda: has_data(url, "raylane:model_owner offset 75s"), 180
        )  # counts are compared with those of then
        assert alerts_at(address) == set()
        with loaded(cluster):
            began_s = time.monotonic()
            eventually(lambda: burn in alerts_at(address), 120)
            tell.append(f"the burn reached Alertmanager after {time.monotonic() - began_s:.0f} s")
            for title, expression in expressions("20s").items():
                eventually(lambda expression=expression: has_data(url, expression), 30)
                seen.add(title)
        costs.unlink()
        cluster.done("hold", LATE, "1", "--for", "30m", "--why", "a test")
        eventually(lambda: failed in alerts_at(address), 120)
        began_s = time.monotonic()
        eventually(lambda: burn not in alerts_at(address), 400)
        tell.append(f"...and was gone {time.monotonic() - began_s:.0f} s after the start had failed")
        assert {one for one in alerts_at(address) if one[1] == "page"} == set()
        costs.write_text(kept)
        eventually(lambda: failed not in alerts_at(address), 400)
        cluster.done("release", LATE)
    assert len(seen) == len(expressions("20s"))
