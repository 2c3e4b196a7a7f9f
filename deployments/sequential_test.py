"""A sequential test for a change, with a known rate of false alarms. Pure.

For each size of shift, the Shiryaev-Roberts statistic sums the likelihood ratios of a change at each earlier look:

    R(t) = (R(t-1) + 1) * exp(evidence(t)),    R(0) = 0

While nothing has changed, the mean of exp(evidence) is at most 1, so that R(t) - t does not grow on average, and the
first alarm at R >= A comes after A looks on average, or later (Pollak, Annals of Statistics 13, 1985; for bounds
instead of a distribution: Shin, Ramdas and Rinaldo, "E-detectors", 2024). The mean of R over the shifts stays below t
likewise, so one test may look for several shifts; of m tests each takes the threshold m * A.

The null hypothesis is a bound, not equality: what a plan or a version before it allows. Evidence beyond a bound c,
for a figure of rho * c:

    rate     Poisson   N events in T seconds    N ln(rho) - c T (rho - 1)
    share    binomial  S hits in T trials       S ln(p/c) + (T - S) ln((1 - p)/(1 - c)), odds of p = rho * odds of c
"""

import math
from collections.abc import Sequence

SHIFTS = (1.2, 1.5, 2.5, 6.0)
"""How far beyond its bound a figure may be: factors (of shares: of the odds)."""


def rate_evidence(events: float, seconds: float, bound: float) -> tuple[float, ...]:
    """That events come faster than `bound` a second: log-likelihood ratios, one for each shift."""
    return tuple(events * math.log(rho) - bound * seconds * (rho - 1) for rho in SHIFTS)


def share_evidence(hits: float, trials: float, bound: float) -> tuple[float, ...]:
    """That more than the share `bound` of the trials are hits: log-likelihood ratios, one for each shift. Raises
    ValueError for a bound at which no share or every share is beyond."""
    if not 0 < bound < 1:
        raise ValueError(f"bound = {bound:g}: allowed: above 0 and below 1")
    shifted = [rho * bound / (1 - bound + rho * bound) for rho in SHIFTS]
    return tuple(hits * math.log(p / bound) + (trials - hits) * math.log((1 - p) / (1 - bound)) for p in shifted)


class SequentialTest:
    """Looks again and again whether a figure is beyond its bound. `looks`: between two false alarms, on average at
    least. `tests`: how many such tests look for the same alarm."""

    def __init__(self, looks: float, tests: int = 1) -> None:
        self._threshold = math.log(looks * tests)
        self._logs: list[float] = [-math.inf] * len(SHIFTS)

    def look(self, evidence: Sequence[float]) -> bool:
        """Adds the evidence since the last look, one figure for each shift. True: it is an alarm."""
        for number, one in enumerate(evidence):
            # log(R + 1) + evidence, for an R that may be too large for a float
            log = self._logs[number]
            self._logs[number] = (max(log, 0.0) + math.log1p(math.exp(-abs(log)))) + one
        highest = max(self._logs)
        mean = highest + math.log(sum(math.exp(one - highest) for one in self._logs) / len(self._logs))
        return mean >= self._threshold
