"""What the stack takes while it runs: processor time by part, memory, and how late its event loops are."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness import cpu_seconds, pss_mib

_BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)"\} (\S+)$')
GATEWAY_LAG = "raylane_event_loop_lag_seconds"
ENGINE_LATE = "raylane_simulated_late_seconds"
Buckets = Counter[float]


@dataclass(frozen=True, slots=True)
class GaugeReading:
    """Seconds of processor time by part, and cumulated counts of delays by their upper bounds, since the processes
    began."""

    cpu_s: dict[str, float]
    gateway_lag: Buckets
    engine_late: Buckets


class Gauges:
    """Reads the processes of a stack that is up. `tree`: all of them."""

    def __init__(self, session: aiohttp.ClientSession, status: dict[str, Any], tree: list[psutil.Process]) -> None:
        self._session = session
        self._url, gateway = status["gateway"]["url"], status["gateway"]["pid"]
        replicas = {replica["pid"]: replica["url"] for model in status["models"] for replica in model["replicas"]}
        self._urls = list(replicas.values())
        secret = (Path(status["run_dir"]) / "secret").read_text(encoding="utf-8").strip()
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._parts: dict[str, list[psutil.Process]] = {"gateway": [], "replicas": [], "rest": []}
        for process in tree:
            part = "replicas" if process.pid in replicas else "gateway" if process.pid == gateway else "rest"
            self._parts[part].append(process)

    async def read(self) -> GaugeReading:
        """All counters, now."""
        late = Buckets()
        for url in self._urls:
            late.update(await self._histogram(url, ENGINE_LATE))
        spent_s = {part: cpu_seconds(processes) for part, processes in self._parts.items()}
        return GaugeReading(spent_s, await self._histogram(self._url, GATEWAY_LAG), late)

    def memory(self) -> dict[str, float]:
        """MiB by part, shared pages split among those that share them."""
        return {part: round(pss_mib(processes), 1) for part, processes in self._parts.items()}

    async def _histogram(self, url: str, name: str) -> Buckets:
        async with self._session.get(url + "/metrics", headers=self._headers) as response:
            text = await response.text()
        found = (_BUCKET.match(line) for line in text.splitlines())
        return Buckets(
            {float(match[2]): int(float(match[3])) for match in found if match is not None and match[1] == name}
        )


def quantile(before: Buckets, after: Buckets, share: float) -> float | None:
    """The bound of the bucket in which the quantile of what came between two readings lies, seconds. None: nothing
    came."""
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    total = max(counts.values(), default=0)
    return next((bound for bound, count in counts.items() if count >= share * total), None) if total else None
