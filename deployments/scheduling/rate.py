"""The service rate: how many tokens of work a second are finished, as a decayed average.

    rate = sum(w_i * tokens_i) / integral of w over busy time,  w(t) = 2 ** (-(now - t) / half_life)

Only time with leases in it counts, so an idle hour does not make the cluster look slow.
"""

import math

HALF_LIFE_S = 30.0
_LAMBDA = math.log(2) / HALF_LIFE_S


class ServiceRate:
    """Fed by the scheduler: `resume` at the first lease, `observe` at each finished one, `pause` when the last lease ended."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._busy_s = 0.0
        self._at_s = 0.0
        self._busy = False

    def resume(self, now: float) -> None:
        """Work begins after idleness, which neither counts nor ages what was learned."""
        if not self._busy:
            self._busy, self._at_s = True, now

    def observe(self, tokens: int, now: float) -> None:
        """`tokens` of work (prompt and output) ended."""
        self._advance(now)
        self._tokens += tokens

    def pause(self, now: float) -> None:
        """No lease is left."""
        self._advance(now)
        self._busy = False

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of work finished a second while busy; None until anything was."""
        return self._tokens / self._busy_s if self._busy_s > 0 and self._tokens > 0 else None

    def _advance(self, now: float) -> None:
        if not self._busy:
            return
        elapsed = max(0.0, now - self._at_s)
        decay = math.exp(-_LAMBDA * elapsed)
        self._tokens *= decay
        self._busy_s = self._busy_s * decay + (1.0 - decay) / _LAMBDA
        self._at_s = now
