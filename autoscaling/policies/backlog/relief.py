"""Whether one more replica can help against missed SLOs: only what waits is served sooner by it, and a step that has
changed nothing is not repeated.

    nothing waits     a request of the class that burns waits in its lanes for less than WAITS of its SLO, on average
    helped nothing    JUDGED_S after the replica of the last such step became ready, promises of the same class are
                      missed at KEPT or more of the rate of then, and no replica has more work than each had then

What helped nothing is not tried again for AGAIN_S, unless the work that arrives has grown by GROWN. An SLO that is
shorter than an idle engine takes to its first token is kept by no number of replicas: that is for the operator to
change.
"""

import math
from dataclasses import dataclass

from autoscaling.policies.backlog.burn import Burning
from autoscaling.policies.policy import Concern

WAITS = 0.1
JUDGED_S = 120.0
KEPT = 0.75
AGAIN_S = 3_600.0
GROWN = 1.25
_STALE_S = 1_800.0


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was asked for: when, with how many ready, who burned how fast, and the work that arrived a second."""

    at_s: float
    ready: int
    burning: Burning
    work: float


class Relief:
    """Of the steps that missed SLOs asked for."""

    def __init__(self) -> None:
        self._step: _Step | None = None
        self._in_vain: _Step | None = None
        self._until_s = -math.inf

    def concern(self, now: float, ready: int, burning: Burning, seen_s: float, work: float) -> Concern | None:
        """Why no replica would help those that burn too fast now; None where one may."""
        if burning.wait_share < WAITS:
            return Concern.NOTHING_WAITS
        self._judge(now, ready, burning, seen_s, work)
        if self._in_vain is None or now >= self._until_s or work > GROWN * self._in_vain.work:
            return None
        return Concern.HELPED_NOTHING

    def open(self, now: float, ready: int, seen_s: float) -> bool:
        """Whether the last step can be judged already, or there is none to judge."""
        return self._judgeable(now, ready) is None or seen_s >= JUDGED_S

    def stepped(self, now: float, ready: int, burning: Burning, work: float) -> None:
        """One more was asked for."""
        if self._step is None or self._step.ready != ready or now - self._step.at_s >= _STALE_S:
            self._step = _Step(now, ready, burning, work)

    def _judge(self, now: float, ready: int, burning: Burning, seen_s: float, work: float) -> None:
        step = self._judgeable(now, ready)
        if step is None or seen_s < JUDGED_S:
            return
        self._step = None
        same = burning.traffic_class == step.burning.traffic_class and work / ready <= step.work / max(1, step.ready)
        if same and burning.rate >= KEPT * step.burning.rate:
            self._in_vain, self._until_s = step, now + AGAIN_S

    def _judgeable(self, now: float, ready: int) -> _Step | None:
        step = self._step
        return step if step is not None and ready > step.ready and now - step.at_s < _STALE_S else None
