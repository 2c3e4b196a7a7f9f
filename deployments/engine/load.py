"""The replica's picture of its engine: how much runs and waits, how full the KV cache is, when it last stepped. Whoever runs the engine paints it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineLoad:
    """The engine after its last step. `last_step` is on this process's monotonic clock (seconds); `changed` is called after each step."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    last_step: float = field(default_factory=time.monotonic)
    changed: Callable[[], None] = lambda: None
