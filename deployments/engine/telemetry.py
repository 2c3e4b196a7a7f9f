"""The Prometheus metrics of a replica that vLLM does not have; `/metrics` on its port shows both, from the process's
default registry.

Not here: anything that vLLM counts already (running, waiting, KV use).
"""

import asyncio
import time
from collections.abc import Iterable, Sequence

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from deployments.protocol import Finished, ReplicaState
from deployments.starts.phases import PhaseSeconds
from deployments.telemetry.line_log import Logs

EXCHANGES = Gauge("raylane_engine_exchanges_open", "HTTP exchanges that this replica is serving.")
STATE = Gauge("raylane_engine_state", "1 for the state that this replica is in.", ["state"])
DRAINS = Counter("raylane_engine_drains", "1 once this replica drains, by reason.", ["reason"])
FINISHED = Counter(
    "raylane_engine_exchanges_finished",
    "HTTP exchanges that have ended, by HTTP status (499: the client left first).",
    ["status"],
)
TOKENS = Counter(
    "raylane_engine_tokens",
    "Tokens of the sequences that finished, by kind; prompts count once for each sequence.",
    ["kind"],
)
START = Gauge("raylane_engine_start_seconds", "How long this replica's start was in each phase.", ["model", "phase"])
LOOP_LAG = Gauge("raylane_engine_loop_lag_seconds", "How late the event loop ran its last timer.")
LOGS = Logs()
REGISTRY.register(LOGS)


class _OfEngine(Collector):
    """What the engine of this process shows, once it has started."""

    shown: Sequence[Collector] = ()

    def collect(self) -> Iterable[Metric]:
        return (metric for one in self.shown for metric in one.collect())


OF_ENGINE = _OfEngine()
REGISTRY.register(OF_ENGINE)

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
    TOKENS.labels("prompt").inc(finished.prompt_tokens)
    TOKENS.labels("cached").inc(finished.cached_tokens)
    TOKENS.labels("output").inc(finished.output_tokens)


async def measure_loop_lag() -> None:
    while True:
        due = time.monotonic() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        LOOP_LAG.set(max(0.0, time.monotonic() - due))
