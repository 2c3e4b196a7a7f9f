"""What a replica asks of the engine that it runs: vLLM (`vllm_app.py`), or one that is simulated
(`deployments/engine/simulated/backend.py`).

Everything else of a replica (its guard, its exchanges, its feed, its drain, its watchdog) is the same for both, so that
a gateway sees no difference.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.spec import Model
from deployments.engine.exchanges import Exchanges
from deployments.engine.start_clock import StartClock
from deployments.engine.steps import StepTimes


@dataclass(slots=True)
class EngineLoad:
    """The engine after its last step. `last_step` is on this process's monotonic clock (seconds); `changed` is called
    after each step. `times`: of all steps."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    last_step: float = field(default_factory=time.monotonic)
    changed: Callable[[], None] = lambda: None
    times: StepTimes = field(default_factory=StepTimes)


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """What the engine can hold, in tokens and sequences (vLLM's names)."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int


class Backend(Protocol):
    """A running engine and the ASGI app that serves it. It updates the EngineLoad and records its sequences on the
    Exchanges that it was given."""

    @property
    def watch_every_s(self) -> float:
        """How often it has to be asked whether it lives (seconds)."""

    @property
    def asgi(self) -> Any:
        """vLLM's HTTP face."""

    @property
    def capacity(self) -> EngineCapacity:
        """What it can hold."""

    @property
    def dead(self) -> bool:
        """Whether the engine is known to have ended."""

    @property
    def unfinished(self) -> int:
        """Sequences that were accepted and not finished."""

    @property
    def last_words(self) -> str:
        """How an engine that has died ended, in a line: by which signal, or with which error."""

    def compiling(self) -> bool:
        """Whether the engine has compiled, and so had reason to take no step, since this was asked last."""

    async def probe(self) -> None:
        """Returns when the engine has given a sign of life, or is known to have ended."""

    async def wait_dead(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, or as soon as the engine is known to have ended."""

    def kill(self) -> None:
        """Ends the engine at once; every request that it held fails."""

    async def stop(self) -> None:
        """Ends the engine and waits until nothing of it is left."""


StartBackend = Callable[[Model, EngineLoad, Exchanges, StartClock], Awaitable[Backend]]
"""Starts an engine for a model, and says in which phase that is; returns when it can serve."""
