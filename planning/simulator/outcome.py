"""What became of each simulated request, as columns; and of the cell as a whole."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoscaling.scaler.decision import Decision
from deployments.scheduling import RejectCause
from planning.simulator.fleet import Life

CAUSES = tuple(RejectCause)

Column = NDArray[np.float64]


@dataclass(slots=True)
class Outcome:
    """Seconds from the start; NaN where it did not happen. `lane` is the index of the lane by length, -1 before any; `cause` that of `CAUSES` for a
    request that was turned away, -1 for others; `expired_s` when one gave up waiting in its lane."""

    arrived_s: Column
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    placed_s: Column
    first_s: Column
    finished_s: Column
    engine_queued_s: Column
    """How long it waited inside the engine before its prefill began."""
    lane: NDArray[np.int8]
    replica: NDArray[np.int32]
    cause: NDArray[np.int8]
    expired_s: Column
    failed: NDArray[np.bool_]
    """Lost with its replica."""
    promoted: NDArray[np.bool_]
    eta_p50_s: Column
    eta_p95_s: Column
    itl_s: dict[float, float] = field(default_factory=dict)
    """Quantiles of the time between tokens, over all engines."""
    ended_s: float = 0.0
    preemptions: int = 0
    lives: tuple[Life, ...] = ()
    """Of the replicas, in the order in which they started."""
    scalings: tuple[Decision, ...] = ()
    """What the autoscaler decided: what changed the number of replicas, its reason or the law's concern."""

    @classmethod
    def empty(cls, arrived_s: Column, prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]) -> "Outcome":
        """Nothing has happened yet."""
        count = len(arrived_s)

        def unknown() -> Column:
            return np.full(count, np.nan)

        lane, cause = (np.full(count, -1, dtype=np.int8) for _ in range(2))
        replica = np.full(count, -1, dtype=np.int32)
        failed, promoted = (np.zeros(count, dtype=np.bool_) for _ in range(2))
        columns = (unknown(), unknown(), unknown(), unknown(), lane, replica, cause, unknown(), failed, promoted, unknown(), unknown())
        return cls(arrived_s, prompt_tokens, output_tokens, *columns)

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """Turned away: on arrival, or when its wait for a replica was known to be in vain."""
        return self.cause >= 0

    @property
    def expired(self) -> NDArray[np.bool_]:
        """Gave up waiting in the lane."""
        return ~np.isnan(self.expired_s)

    @property
    def replica_s(self) -> float:
        """Replica-seconds that are paid for: from each one's start, its start-up with it, to its end."""
        return sum(life.ended_s - life.started_s for life in self.lives)

    @property
    def ttft_s(self) -> Column:
        """Time to first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> Column:
        """Time per output token after the first; NaN for answers of one token."""
        after_first = self.output_tokens - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot: Column = np.where(after_first > 0, (self.finished_s - self.first_s) / after_first, np.nan)
        return tpot

    @property
    def e2e_s(self) -> Column:
        """From arrival to the last token."""
        return self.finished_s - self.arrived_s

    @property
    def queued_s(self) -> Column:
        """In the lane."""
        return self.placed_s - self.arrived_s
