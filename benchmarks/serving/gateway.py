"""What the benchmarks ask of a running gateway and its engine: status, addresses, counters, and when something happens
in their counts.

`EngineWatch` reads the engine replica's own feed, which carries vLLM's scheduler statistics after each step (at most
every 50 ms: times from it are late by up to that). `GatewayWatch` asks the gateway's status every few milliseconds
while somebody waits.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from deployments.protocol import FEED_PATH, Load, ReplicaState, feed_reader

STATUS_PATH = "/raylane/status"
_COUNTERS = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Counts:
    """The gateway's counts over all models: requests in lanes, leases open, leases ended by way of ending."""

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
    """The counts in a report."""
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


POLL_S = 0.005
NOTHING = Load(ReplicaState.READY, running=0, waiting=0, exchanges=0, kv_usage=0.0)


class NeverError(RuntimeError):
    """What was waited for did not happen in time."""


class EngineWatch:
    """The engine's load as last reported. An async context manager."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self._session = session
        self._url = url + FEED_PATH
        self._headers = headers
        self._changed = asyncio.Condition()
        self.load = NOTHING

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, holds: Callable[[Load], bool], timeout_s: float) -> float:
        """The monotonic time at which `holds` was first seen to be so. Raises NeverError."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._task.done() or holds(self.load))
        except TimeoutError:
            raise NeverError(f"the engine still shows {self.load} after {timeout_s:g} s") from None
        if self._task.done():
            raise NeverError("the engine's feed has ended")
        return time.monotonic()

    async def _read(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._url, headers=self._headers, timeout=timeout) as response:
            response.raise_for_status()
            reader = feed_reader()
            async for data in response.content.iter_any():
                for message in reader.feed(data):
                    if isinstance(message, Load):
                        async with self._changed:
                            self.load = message
                            self._changed.notify_all()


class GatewayWatch:
    """The gateway's counts, polled."""

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path) -> None:
        self._session = session
        self._url = url
        self._folder = folder

    async def now(self) -> Counts:
        """The counts at this moment."""
        return counts(await self.report())

    async def report(self) -> dict[str, Any]:
        """The gateway's whole status."""
        return await read_status(self._session, self._url, self._folder)

    async def until(self, holds: Callable[[Counts], bool], timeout_s: float) -> float:
        """The monotonic time at which an answer of which `holds` is true came. Raises NeverError."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self.now()
            if holds(found):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise NeverError(f"the gateway still shows {found} after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)
