"""What the HorizontalPodAutoscaler does between a wish and the scale that it writes: stabilisation, then rates. Shared by the laws that end in one.

    floor = the least wish of the last up.stabilisation_s, this one with it;  ceiling = the largest of the last down.stabilisation_s
    stabilised = current, raised to the floor, lowered to the ceiling
    start = replicas at the start of a policy's period: those of now less its own steps since
    up:   at most the larger of start + pods and start * (1 + percent / 100), rounded up
    down: at least the smaller of start - pods and start * (1 - percent / 100), rounded down

Follows `stabilizeRecommendationWithBehaviors` and `convertDesiredReplicasWithBehaviorRate` of Kubernetes,
`pkg/controller/podautoscaler/horizontal.go`, in the later form where both directions' wishes and steps count. Left out: the policy selectors Min and
Disabled, which no law here uses.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from autoscaling.laws.rivals.window import Window


@dataclass(frozen=True, slots=True)
class Rate:
    """`pods` and `percent` in any `period_s`, whichever allows more; None: that policy is not there."""

    period_s: float
    pods: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How far back wishes count, and at what rates, in each direction."""

    up_stabilisation_s: float
    down_stabilisation_s: float
    up: Rate
    down: Rate


def shipped(down_stabilisation_s: float = 300.0) -> Behaviour:
    """The default of `autoscaling/v2`: up at once, by max(100 %, 4 pods) in 15 s; down by anything, after five minutes of lower wishes."""
    return Behaviour(0.0, down_stabilisation_s, Rate(15.0, 4, 100.0), Rate(15.0, None, 100.0))


class Normaliser:
    """The memory of one HorizontalPodAutoscaler: its wishes and its steps."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._wishes = Window(max(behaviour.up_stabilisation_s, behaviour.down_stabilisation_s, 1.0))
        self._steps: deque[tuple[float, int]] = deque()
        self._asked: tuple[float, int] | None = None
        self._started = False

    def normalise(self, now: float, current: int, wish: int, least: int) -> int:
        """The number that is written to the scale, where `current` are there; never below `least`."""
        if not self._started:  # the controller begins with what it finds, so that a restart does not scale down
            self._wishes.add(now, current)
            self._started = True
        if self._asked is not None and current != self._asked[1]:  # what came of it: our bounds, which lie behind, may have left less of the step
            self._steps.append((self._asked[0], current - self._asked[1]))
        number = max(least, self._rated(now, current, self.stabilise(now, current, wish)))
        self._asked = None if number == current else (now, current)
        return number

    def stabilise(self, now: float, current: int, wish: int) -> int:
        """The wish among those of late, and remembers it."""
        behaviour = self._behaviour
        floor = min([wish, *(int(past) for past in self._wishes.since(now - behaviour.up_stabilisation_s))])
        ceiling = max([wish, *(int(past) for past in self._wishes.since(now - behaviour.down_stabilisation_s))])
        self._wishes.add(now, wish)
        return min(max(current, floor), ceiling)

    def _rated(self, now: float, current: int, number: int) -> int:
        longest = max(self._behaviour.up.period_s, self._behaviour.down.period_s)
        while self._steps and self._steps[0][0] <= now - longest:
            self._steps.popleft()
        if number > current:
            return min(number, max(current, up_limit(self._behaviour.up, self._start(now, current, self._behaviour.up.period_s))))
        if number < current:
            return max(number, min(current, down_limit(self._behaviour.down, self._start(now, current, self._behaviour.down.period_s))))
        return number

    def _start(self, now: float, current: int, period_s: float) -> int:
        """Replicas at the start of that period, of which nothing but this controller's steps is known."""
        return current - sum(step for at, step in self._steps if at > now - period_s)


def up_limit(rate: Rate, start: int) -> int:
    """The most replicas that may be there at the end of a period which `start` were there at the start of."""
    return _best(max, rate, start, 1)


def down_limit(rate: Rate, start: int) -> int:
    """The fewest."""
    return _best(min, rate, start, -1)


def _best(choose: Callable[[list[int]], int], rate: Rate, start: int, sign: int) -> int:
    limits = []
    if rate.pods is not None:
        limits.append(start + sign * rate.pods)
    if rate.percent is not None:
        exact = start * (1 + sign * rate.percent / 100)
        limits.append(math.ceil(exact - 1e-9) if sign > 0 else int(exact + 1e-9))
    return choose(limits)
