"""How many sequences, and how many prompts that prefill at once, a replica may have so that its answers keep the
`itl_ms` of their class.

An answer is in time if its mean time between tokens is (as `simulate` counts it). The strictest class that ran on the
replica in the last minute counts. Every `TURN_S` seconds, of n of its answers that ended in the last minute and were
placed after the last change, with m = `MARGIN` * (1 - attainment) * n:

    late > m + sqrt(m)                         one step down; `FAR_STEPS` while more than half of them are late
    late <= m / 2, and the cap was reached     one step up

A step is 6 %; sqrt(m) is what chance does to a count of m. From a cap that proves too high the next one down is found,
and it is not tried again for `RETRY_S`, each time twice as long: under a steady load the cap moves between two
neighbours, and more and more seldom. What was placed before a change tells of the cap before; so the longer answers
are, the slower the cap follows.

One in `PROMPT_SHARE` sequences may prefill: fewer prompts in a step are smaller chunks beside those that decode, so
that the same share of answers is in time with some more sequences. The floor is one prompt beside one that decodes.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deployments.protocol import Usage
from deployments.scheduling.request import Lease

TURN_S = 10.0
KEPT_S = 60.0
MIN_ANSWERS = 10
MARGIN = 0.6
STEP = 1.06
FAR_STEPS = 5
RETRY_S, MAX_RETRY_S = 60.0, 480.0
FLOOR = 2
PROMPT_SHARE = 24
"""Of so many sequences one may prefill."""


@dataclass(frozen=True, slots=True)
class ItlTarget:
    """A class's SLO: of its answers, a share of `attainment` has a mean time between tokens of at most `itl_s`.
    `starts`: with how many sequences replicas begin, by group; without, with all that they can hold."""

    itl_s: float
    attainment: float
    starts: Mapping[str, int] = field(default_factory=dict)


def levels(maximum: int) -> tuple[int, ...]:
    """The caps, ascending: each 6 % (at least one) more than the one before."""
    found = [min(FLOOR, maximum)]
    while found[-1] < maximum:
        found.append(min(maximum, max(found[-1] + 1, round(found[-1] * STEP))))
    return tuple(found)


class ClassCap:
    """The cap of one replica for one class. `sequences`: the cap."""

    def __init__(self, target: ItlTarget, maximum: int, start: int) -> None:
        self.target = target
        self._levels = levels(maximum)
        self._at = max(0, bisect_right(self._levels, start) - 1)
        self._answers: deque[tuple[float, bool]] = deque()
        self._changed_s = -KEPT_S
        self._rose = False
        self._too_much: int | None = None
        self._retry_s = RETRY_S
        self._retry_at_s = 0.0

    @property
    def sequences(self) -> int:
        return self._levels[self._at]

    def ended(self, itl_s: float, placed_s: float, now: float) -> None:
        """An answer of the class ended. `placed_s`: when it was placed here."""
        if placed_s >= self._changed_s:
            self._answers.append((now, itl_s > self.target.itl_s))

    def turn(self, peak: int, now: float) -> None:
        """Moves the cap. `peak`: the most sequences that ran at once since the last turn."""
        while self._answers and self._answers[0][0] <= now - KEPT_S:
            self._answers.popleft()
        n, late = len(self._answers), sum(one for _, one in self._answers)
        most = MARGIN * (1.0 - self.target.attainment) * n
        if n < MIN_ANSWERS:
            return
        if late > most + math.sqrt(most):
            ran = max(0, min(self._at, bisect_left(self._levels, peak)))
            self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s) if ran == self._too_much else RETRY_S
            self._too_much, self._retry_at_s = ran, now + self._retry_s
            far = late > n / 2 and not self._rose
            self._move(max(0, ran - (FAR_STEPS if far else 1)), now)
        elif (
            late <= most / 2
            and peak >= self.sequences
            and (most >= 1.0 or now - self._changed_s >= KEPT_S)
            and self._at < len(self._levels) - 1
            and (self._at + 1 != self._too_much or now >= self._retry_at_s)
        ):
            self._move(self._at + 1, now)

    def _move(self, level: int, now: float) -> None:
        self._rose = level > self._at
        self._at = level
        self._changed_s = now
        self._answers.clear()


UNCAPPED = 1 << 62


class ItlCap:
    """The caps of one replica, `caps` by class. That of the strictest class counts that ran there in the last minute
    (`traffic_class`; None: no cap): `sequences` may run at once, of which `prompts` may prefill."""

    def __init__(self, targets: Mapping[str, ItlTarget], maximum: int, starts: Mapping[str, int]) -> None:
        self.maximum = maximum
        self.sequences = self.prompts = UNCAPPED
        self.traffic_class: str | None = None
        strictest_first = sorted(targets.items(), key=lambda one: (one[1].itl_s, -one[1].attainment, one[0]))
        self.caps = {name: ClassCap(target, maximum, starts[name]) for name, target in strictest_first}
        self._ran_s: dict[str, float] = {}
        self._peak = 0

    def began(self, lease: Lease, sequences: int) -> None:
        """A request is placed here: so many sequences run now."""
        self._peak = max(self._peak, sequences)
        known = lease.request.traffic_class in self._ran_s
        self._ran_s[lease.request.traffic_class] = lease.placed_s
        if not known:
            self._choose()

    def ended(self, lease: Lease, usage: Usage, now: float) -> None:
        """An answer ended. Only the class whose cap counts learns."""
        name, after_first = lease.request.traffic_class, usage.output_tokens / usage.sequences - 1
        if name == self.traffic_class and after_first > 0:
            self.caps[name].ended(usage.decode_s / after_first, lease.placed_s, now)

    def turn(self, running: Iterable[Lease], sequences: int, now: float) -> None:
        """Moves the cap that counts. `running`: in so many sequences."""
        self._ran_s |= {lease.request.traffic_class: now for lease in running}
        self._ran_s = {name: at_s for name, at_s in self._ran_s.items() if at_s > now - KEPT_S}
        if self.traffic_class is not None and self.traffic_class in self._ran_s:
            self.caps[self.traffic_class].turn(self._peak, now)
        self._peak = sequences
        self._choose()

    def _choose(self) -> None:
        self.traffic_class = next((name for name in self.caps if name in self._ran_s), None)
        self.sequences = self.prompts = UNCAPPED
        if self.traffic_class is not None and (cap := self.caps[self.traffic_class].sequences) < self.maximum:
            self.sequences, self.prompts = cap, max(1, cap // PROMPT_SHARE)
