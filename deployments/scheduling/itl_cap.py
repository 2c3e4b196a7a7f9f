"""How many sequences, and how many prompts that prefill at once, a replica may have so that its answers keep the
`itl_ms` of their class.

An answer is in time if its mean time between tokens is (as `simulate` counts it). The strictest class that ran on the
replica in the last minute counts. Every `TURN_S` seconds, of n of its answers that ended in the last minute and were
placed after the last change, with m = `MARGIN` * (1 - attainment) * n:

    late > m + sqrt(m)                         one step down; `FAR_STEPS` while more than half of them are late
    late <= m / 2, and something had to wait   one step up

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
from dataclasses import dataclass

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
    """A class's SLO: of its answers, a share of `attainment` has a mean time between tokens of at most `itl_s`."""

    itl_s: float
    attainment: float


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
        self._late = 0
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
            late = itl_s > self.target.itl_s
            self._answers.append((now, late))
            self._late += late

    def turn(self, peak: int, full: bool, now: float) -> None:
        """Moves the cap. `peak`: the most sequences that ran at once since the last turn; `full`: it was reached."""
        while self._answers and self._answers[0][0] <= now - KEPT_S:
            self._late -= self._answers.popleft()[1]
        n, late = len(self._answers), self._late
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
            and full
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
        self._late = 0


UNCAPPED = 1 << 62


class ItlCap:
    """The caps of one replica, of which that of the strictest class counts that ran there in the last minute.

    `sequences` may run at once, of which `prompts` may prefill; `traffic_class` is whose cap that is (None: nobody's).
    `caps`: by class.
    """

    def __init__(self, targets: Mapping[str, ItlTarget], maximum: int, starts: Mapping[str, int]) -> None:
        self.targets, self.maximum = targets, maximum
        self.sequences = self.prompts = UNCAPPED
        self.traffic_class: str | None = None
        self.caps = {
            name: ClassCap(target, maximum, starts.get(name, maximum))
            for name, target in sorted(targets.items(), key=lambda one: (one[1].itl_s, -one[1].attainment, one[0]))
        }
        self._ran_s: dict[str, float] = {}
        self._peak = 0

    def bound(self, traffic_class: str, sequences: int, now: float) -> None:
        """A request of that class is placed here: so many sequences run now."""
        self._peak = max(self._peak, sequences)
        if traffic_class in self.caps:
            known = traffic_class in self._ran_s
            self._ran_s[traffic_class] = now
            if not known:
                self._choose()

    def ended(self, traffic_class: str, itl_s: float, placed_s: float, now: float) -> None:
        """An answer ended: its mean time between tokens, and when it was placed here. Only the class whose cap counts
        learns."""
        if traffic_class == self.traffic_class:
            self.caps[traffic_class].ended(itl_s, placed_s, now)

    def turn(self, running: Iterable[str], sequences: int, full: bool, now: float) -> None:
        """Moves the cap that counts. `running`: the classes of what runs, in so many sequences; `full`: something waits
        for them."""
        self._ran_s |= dict.fromkeys((name for name in running if name in self.caps), now)
        self._ran_s = {name: at_s for name, at_s in self._ran_s.items() if at_s > now - KEPT_S}
        if self.traffic_class is not None and self.traffic_class in self._ran_s:
            self.caps[self.traffic_class].turn(self._peak, full or self._peak >= self.sequences, now)
        self._peak = sequences
        self._choose()

    def _choose(self) -> None:
        self.traffic_class = next((name for name in self.caps if name in self._ran_s), None)
        cap = self.maximum if self.traffic_class is None else self.caps[self.traffic_class].sequences
        self.sequences, self.prompts = (
            (UNCAPPED, UNCAPPED) if cap == self.maximum else (cap, max(1, cap // PROMPT_SHARE))
        )
