"""What the benchmarks ask of a running gateway: its status, its engine's address and secret, and the engine's own counters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

STATUS_PATH = "/raylane/status"
_COUNTERS = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Counts:
    """The gateway's books over all models: requests in lanes, leases open, leases ended by way of ending."""

    waiting: int
    leases: int
    endings: dict[str, int]


async def read_status(session: aiohttp.ClientSession, url: str, folder: Path) -> dict[str, Any]:
    """The gateway's report; `folder` is the one that its side was made with. Raises aiohttp.ClientError, OSError."""
    (secret,) = (folder / "home").glob("*/secret")
    headers = {"Authorization": f"Bearer {secret.read_text(encoding='utf-8')}"}
    async with session.get(url + STATUS_PATH, headers=headers) as response:
        response.raise_for_status()
        report: dict[str, Any] = await response.json()
    return report


def counts(status: dict[str, Any]) -> Counts:
    """The books in a report."""
    endings: dict[str, int] = {}
    for model in status["models"]:
        for ending, count in model["endings"].items():
            endings[ending] = endings.get(ending, 0) + count
    waiting = sum(lane["waiting"] for model in status["models"] for lane in model["lanes"])
    return Counts(waiting, sum(model["leases"] for model in status["models"]), endings)


def gateway_pid(status: dict[str, Any]) -> int:
    """The gateway's process."""
    return int(status["gateway"]["pid"])


def engine_url(status: dict[str, Any]) -> str:
    """The address of the only replica."""
    (replica,) = status["models"][0]["replicas"]
    return str(replica["url"])


def engine_headers(status: dict[str, Any]) -> dict[str, str]:
    """What opens the engine's port: the cluster's secret, from the run directory that the status names."""
    secret = (Path(status["run_dir"]) / "secret").read_text(encoding="utf-8").strip()
    return {"Authorization": f"Bearer {secret}"}


async def engine_counters(session: aiohttp.ClientSession, status: dict[str, Any]) -> dict[str, float]:
    """vLLM's own gauges of what runs, what waits and how full the KV cache is."""
    async with session.get(engine_url(status) + "/metrics", headers=engine_headers(status)) as response:
        response.raise_for_status()
        text = await response.text()
    found = dict.fromkeys(_COUNTERS, 0.0)
    for line in text.splitlines():
        name = line.split("{", 1)[0]
        if name in found:
            found[name] += float(line.rsplit(" ", 1)[1])
    return found
