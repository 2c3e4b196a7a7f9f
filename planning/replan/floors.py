"""The floors on their way to the targets, and the ceilings above them."""

from planning.replan.basis import Observed, SiteKey
from planning.replan.program import Counts, Moment
from planning.replan.result import HeldBack


class FloorPath:
    """From the floors `before` toward `targets`: up by a step, or at once where the floors do not cover what must be
    covered; down by a step, as far as the replicas that are ready cover it without what goes."""

    def __init__(self, moment: Moment, observed: Observed, before: Counts, targets: Counts) -> None:
        self.held: dict[SiteKey, HeldBack] = {}
        """Why a floor is not at its target."""
        self._moment = moment
        self._states = observed.states
        self._targets = targets
        self.floors = {key: min(count, moment.bounds[key][1]) for key, count in before.items()}
        self._go_up()
        self._go_down()

    def _go_up(self) -> None:
        urgent = not self._moment.with_counts(self.floors).covers
        for key in sorted(self._targets, key=lambda key: self._moment.usd_per_hour[key]):
            if self._targets[key] > self.floors[key]:
                self._raise(key, urgent)
        quota_binds = HeldBack.QUOTA in self.held.values()
        if urgent and quota_binds and not self._moment.with_counts(self.floors).covers:
            self.floors, self.held = dict(self._targets), {}

    def _raise(self, key: SiteKey, urgent: bool) -> None:
        floor, target = self.floors[key], self._targets[key]
        allowed = target if urgent else min(target, floor + self._moment.settings.steps(floor))
        more = self._moment.basis.more(key, self.floors)
        self.floors[key] = allowed if more is None else min(allowed, floor + more)
        if self.floors[key] < target:
            self.held[key] = HeldBack.QUOTA if self.floors[key] < allowed else HeldBack.STEP

    def _go_down(self) -> None:
        falling = [key for key, target in self._targets.items() if target < self.floors[key]]
        covered = bool(falling) and self._covers_when_ready({})
        for key in sorted(falling, key=lambda key: -self._moment.usd_per_hour[key]):
            floor, target = self.floors[key], self._targets[key]
            lowest = max(target, floor - self._moment.settings.steps(floor))
            candidates = range(lowest, floor) if covered else ()
            self.floors[key] = next((one for one in candidates if self._covers_when_ready({key: one})), floor)
            if self.floors[key] > target:
                self.held[key] = HeldBack.STEP if self.floors[key] == lowest else HeldBack.NOT_READY

    def _covers_when_ready(self, changed: Counts) -> bool:
        """Whether the replicas that are ready now cover everything, with those changes of the floors."""
        floors = {**self.floors, **changed}
        ready = {key: min(count, self._states[key].ready) for key, count in floors.items()}
        return self._moment.with_counts(ready).covers


def ceilings_over(moment: Moment, floors: Counts) -> dict[SiteKey, int]:
    """The floors with their slack, a replica each in turn, as far as spec and quotas allow."""
    share = moment.settings.slack_share
    aims = {key: min(moment.bounds[key][1], count + max(1, -int(-share * count // 1))) for key, count in floors.items()}
    ceilings = dict(floors)
    growing = [key for key in ceilings if ceilings[key] < aims[key]]
    while growing:
        for key in growing:
            more = moment.basis.more(key, ceilings)
            if more is None or more > 0:
                ceilings[key] += 1
            else:
                aims[key] = ceilings[key]
        growing = [key for key in growing if ceilings[key] < aims[key]]
    return ceilings
