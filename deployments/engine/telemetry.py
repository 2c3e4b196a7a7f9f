"""The Prometheus metrics of a replica that vLLM does not have; `/metrics` on its port shows both, from the process's
default registry.

Not here: anything that vLLM counts already (running, waiting, KV use).
"""

import asyncio
import time

from prometheus_client import REGISTRY, Counter, Gauge

from deployments.protocol import Finished, ReplicaState
from deployments.starts.phases import PhaseSeconds
from deployments.telemetry import table
from deployments.telemetry.exposition import Exposition
from deployments.telemetry.line_log import Logs

EXCHANGES = Gauge(*table.ENGINE_EXCHANGES.about)
STATE = Gauge(*table.ENGINE_STATE.about)
DRAINS = Counter(*table.ENGINE_DRAINS.about)
FINISHED = Counter(*table.ENGINE_FINISHED.about)
TOKENS = Counter(*table.ENGINE_TOKENS.about)
START = Gauge(*table.ENGINE_START.about)
LOOP_LAG = Gauge(*table.ENGINE_LOOP_LAG.about)
LOGS = Logs()
EXPOSITION = Exposition(LOGS.samples)
"""The engine's own sources come as it starts."""
REGISTRY.register(EXPOSITION)

_LAG_EVERY_S = 0.25


def show_state(state: ReplicaState) -> None:
    """Sets the state's gauge, and clears the others'."""
    for each in ReplicaState:
        STATE.labels(each.value).set(each is state)


def show_start(model: str, seconds: PhaseSeconds) -> None:
    """Sets the gauge of each phase; the wait for a node is the directory's to tell."""
    for phase, spent in seconds.items():
        START.labels(model, phase.value).set(spent)


def count(finished: Finished) -> None:
    FINISHED.labels(str(finished.status)).inc()
    TOKENS.labels("prompt").inc(finished.usage.prompt_tokens)
    TOKENS.labels("cached").inc(finished.usage.cached_tokens)
    TOKENS.labels("output").inc(finished.usage.output_tokens)


async def measure_loop_lag() -> None:
    while True:
        due = time.monotonic() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        LOOP_LAG.set(max(0.0, time.monotonic() - due))
