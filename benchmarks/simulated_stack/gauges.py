"""What the stack takes while it runs: processor time by part, memory, and how late its event loops are."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness import cpu_seconds

_BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)"\} (\S+)$')
GATEWAY_LAG = "raylane_event_loop_lag_seconds"
ENGINE_LATE = "raylane_simulated_late_seconds"
Buckets = dict[float, float]


@dataclass(frozen=True, slots=True)
class GaugeReading:
    """Seconds of processor time by part, and cumulated counts of delays by their upper bounds, since the processes
    began."""

    gateway_s: float
    replicas_s: float
    rest_s: float
    gateway_lag: Buckets
    engine_late: Buckets


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB. `all`: the proportional share of all processes; `gateway`, `replica` (the median one): what would be freed
    with it alone."""

    all: float
    gateway: float
    replica: float
    processes: int


class Gauges:
    """Reads the processes of a stack that is up. `tree`: all of them."""

    def __init__(self, session: aiohttp.ClientSession, status: dict[str, Any], tree: list[psutil.Process]) -> None:
        self._session = session
        self._url = status["gateway"]["url"]
        replicas = [replica for model in status["models"] for replica in model["replicas"]]
        self._urls = [replica["url"] for replica in replicas]
        self._headers = {
            "Authorization": f"Bearer {(Path(status['run_dir']) / 'secret').read_text(encoding='utf-8').strip()}"
        }
        self._gateway = psutil.Process(status["gateway"]["pid"])
        pids = {replica["pid"] for replica in replicas}
        self._replicas = [process for process in tree if process.pid in pids]
        self._rest = [process for process in tree if process.pid not in pids and process.pid != self._gateway.pid]

    async def read(self) -> GaugeReading:
        """All counters, now."""
        lag = await self._histogram(self._url, GATEWAY_LAG)
        late: Buckets = {}
        for url in self._urls:
            for bound, count in (await self._histogram(url, ENGINE_LATE)).items():
                late[bound] = late.get(bound, 0.0) + count
        return GaugeReading(
            cpu_seconds([self._gateway]), cpu_seconds(self._replicas), cpu_seconds(self._rest), lag, late
        )

    def memory(self) -> Memory:
        """The memory of all."""
        every = [self._gateway, *self._replicas, *self._rest]
        pss = sum(info.pss for process in every if (info := _memory(process)) is not None)
        uss = sorted(info.uss for process in self._replicas if (info := _memory(process)) is not None)
        gateway = _memory(self._gateway)
        return Memory(
            pss / 2**20, gateway.uss / 2**20 if gateway else 0.0, uss[len(uss) // 2] / 2**20 if uss else 0.0, len(every)
        )

    async def _histogram(self, url: str, name: str) -> Buckets:
        async with self._session.get(url + "/metrics", headers=self._headers) as response:
            text = await response.text()
        found = (_BUCKET.match(line) for line in text.splitlines())
        return {float(match[2]): float(match[3]) for match in found if match is not None and match[1] == name}


def quantile(before: Buckets, after: Buckets, share: float) -> float | None:
    """The bound of the bucket in which the quantile of what came between two readings lies, seconds. None: nothing
    came."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counts.values(), default=0.0)
    return next((bound for bound, count in counts.items() if count >= share * total), None) if total else None


def _memory(process: psutil.Process) -> Any:
    try:
        return process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
