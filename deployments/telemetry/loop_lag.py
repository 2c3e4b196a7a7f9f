"""Event-loop lag: how late a timer of this process fires, which every request in it feels."""

import asyncio
import time

from prometheus_client import CollectorRegistry, Histogram

from deployments.telemetry.buckets import LAG_BOUNDS_S

PERIOD_S = 0.1


class LoopLag:
    """Measures the running loop for as long as `run` is not cancelled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histogram = Histogram("raylane_event_loop_lag_seconds", "How late a timer fired.", buckets=LAG_BOUNDS_S, registry=registry)

    async def run(self) -> None:
        """Sleeps a period at a time and notes how much longer it took."""
        while True:
            start = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self._histogram.observe(max(0.0, time.monotonic() - start - PERIOD_S))
