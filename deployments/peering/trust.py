"""How far a peer's stated waits are believed.

For each hand-over the sender expects a first token by some time (the 95th percentile of the stated wait, the round trip
and the prefill). An honest peer is later than that in 5 % of the cases.

    beaten:      trust := 0.7 * trust,              excess := excess + 0.3 * (what it was late by - excess)
    kept:        trust := trust + 0.1 * (1 - trust), excess := 0.7 * excess
    unobserved:  1 - trust halves every minute, so that a peer that was distrusted is tried again

With 5 % of misses, trust settles at 0.095 / (0.095 + 0.015) = 0.86. A peer that always states too little falls below
0.03 after ten hand-overs. The excess is added to what the peer states, as far as it is not trusted.
"""

import math
from dataclasses import dataclass

_BEATEN = 0.7
_KEPT = 0.1
_EXCESS_WEIGHT = 0.3
_FORGIVE_S = 60.0
_TOLERANCE_S = 0.05
_TOLERANCE_SHARE = 0.25
"""Of what was expected, or of the SLO if that is longer. What is late by less says nothing of the peer: the prefill
rate and the round trip are estimates, too, and a prompt waits for the step that its engine is at. An engine whose steps
took a quarter of the SLO would miss it for its own clients."""


@dataclass(eq=False, slots=True)
class PeerTrust:
    """In one peer, for one model."""

    excess_s: float = 0.0
    _distrust: float = 0.0
    _at_s: float = 0.0

    def at(self, now: float) -> float:
        """From 0 to 1."""
        return 1.0 - self._distrust * math.exp2(-max(0.0, now - self._at_s) / _FORGIVE_S)

    def observe(self, expected_s: float, waited_s: float, slo_s: float, now: float) -> None:
        """A first token that was expected within `expected_s` came after `waited_s`. `slo_s`: the TTFT of its class."""
        late_s = waited_s - expected_s
        if late_s > max(_TOLERANCE_S, _TOLERANCE_SHARE * max(expected_s, slo_s)):
            self.excess_s += _EXCESS_WEIGHT * (late_s - self.excess_s)
            self._set(_BEATEN * self.at(now), now)
        else:
            self.excess_s *= 1.0 - _EXCESS_WEIGHT
            trust = self.at(now)
            self._set(trust + _KEPT * (1.0 - trust), now)

    def rejected(self, now: float) -> None:
        """The peer rejected for its wait or its load what it had stated to have room for."""
        self._set(_BEATEN * self.at(now), now)

    def _set(self, trust: float, now: float) -> None:
        self._distrust, self._at_s = 1.0 - trust, now
