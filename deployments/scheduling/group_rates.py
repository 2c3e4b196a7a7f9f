"""How fast each group of a model works, and what of that a lane can use. A model with one group needs none of it.

A lane g may use the groups G(g). With r(A) the sum of the service rates of the groups in A:

    rate(g)      = r(G(g))
    shared(g, h) = r(G(g) & G(h)) / r(G(h))      the part of h's work that is done on groups that g may use

So the work that goes before a job of lane g is that of its own lane, and of each other lane h the part shared(g, h).
The rates are measured (`learned_state.ServiceRate`). Groups whose rate is not known yet count as equal.
"""

from collections import Counter
from dataclasses import dataclass

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import ServiceRate
from deployments.scheduling.request import Groups, Job


@dataclass(slots=True)
class GroupTally:
    """Of one group, as `snapshot.GroupStats` has it."""

    finished: int = 0
    finished_work: float = 0.0
    output_tokens: int = 0
    counted: int = 0


class GroupRates:
    """`whole`: of all groups together, which is what a job without groups sees."""

    def __init__(self, whole: ServiceRate) -> None:
        self.whole = whole
        self.by_group: dict[str, ServiceRate] = {}
        self.tallies: dict[str, GroupTally] = {}
        self.sequences: dict[tuple[str, Groups], Counter[str]] = {}
        """That run, by the lane and the groups of their jobs, and the group in which they run."""
        self._running: dict[str, int] = {}

    def of(self, groups: Groups) -> float | None:
        """Work a second that these groups do together; None while no rate is known of any."""
        if groups is None:
            return self.whole.per_s
        known = [rate for name in groups if (rate := self._per_s(name)) is not None]
        return sum(known) if known else None

    def backlogged(self, groups: Groups) -> float | None:
        """As `of`, but only what was measured while something waited."""
        if groups is None:
            return self.whole.placed.per_s
        known = [self.by_group[name].placed.per_s for name in groups if name in self.by_group]
        return sum(rate for rate in known if rate is not None) or None

    def shared(self, groups: Groups, others: Groups) -> float:
        """The part of the work of `others` that is done on `groups`."""
        if groups is None or others is None:
            return 1.0
        both = [name for name in others if name in groups]
        if len(both) == len(others):
            return 1.0
        rates = {name: self._per_s(name) for name in others}
        known = [rate for rate in rates.values() if rate is not None]
        assumed = sum(known) / len(known) if known else 1.0
        whole = sum(assumed if rate is None else rate for rate in rates.values())
        part = sum(assumed if (rate := rates[name]) is None else rate for name in both)
        return part / whole if whole else 0.0

    def began(self, group: str, job: Job, now: float) -> None:
        """A lease of the job begins there."""
        self.sequences.setdefault((job.home_name, job.groups), Counter())[group] += job.request.sequences
        self._running[group] = self._running.get(group, 0) + 1
        self._of(group).finished.run(True, now)

    def ended(self, group: str, job: Job, is_done: bool, now: float) -> None:
        """The job's lease ends there."""
        rate = self._of(group)
        self.sequences.setdefault((job.home_name, job.groups), Counter())[group] -= job.request.sequences
        if is_done:
            rate.finished.add(job.cost, now)
            tally = self.tallies.setdefault(group, GroupTally())
            tally.finished += 1
            tally.finished_work += job.cost
        self._running[group] = max(0, self._running.get(group, 0) - 1)
        if not self._running[group]:
            rate.finished.run(False, now)

    def reported(self, group: str, output_tokens: int) -> None:
        """An engine's count of a finished request."""
        tally = self.tallies.setdefault(group, GroupTally())
        tally.output_tokens += output_tokens
        tally.counted += 1

    def placed(self, group: str, cost: float, now: float) -> None:
        """So much work was placed there."""
        self._of(group).placed.add(cost, now)

    def forget_idle(self, group: str) -> None:
        """As `ServiceRate.forget_idle`."""
        self._of(group).forget_idle()

    def tick(self, lanes: Lanes, fleet: Fleet, now: float) -> None:
        """A step ends: time in which something waits for a group, and a replica of it is there, counts for its rate."""
        awaited = {name for lane in lanes.all if lane.count for name in lane.groups or ()}
        for name, rate in self.by_group.items():
            rate.placed.run(name in awaited and fleet.any_ready_of((name,)), now)

    def _of(self, group: str) -> ServiceRate:
        rate = self.by_group.get(group)
        if rate is None:
            rate = self.by_group[group] = ServiceRate()
        return rate

    def _per_s(self, group: str) -> float | None:
        rate = self.by_group.get(group)
        return None if rate is None else rate.per_s
