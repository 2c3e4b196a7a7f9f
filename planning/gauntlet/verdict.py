"""Judges results: comparisons with intervals, regret against the oracle, and where in a sweep a policy misses the SLO.
Pure.

Verdict: for each scenario, rival and point of the rival, is there a point of ours that is not worse on either axis?
Both ran the same runs, so the mean of the paired differences has an interval (Student's t, 95 %). Not worse: the
interval is not entirely on the wrong side. Points of a rival below the floor (`frontier.py`) miss so much that no cost
would justify them; they are ignored.

Regret: what a policy's picks took beyond the oracle, split at the known-rate baseline.

    policy - oracle  =  (known rate - oracle)   +  (policy - known rate)
                        unavoidable                policy regret
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from planning.gauntlet.frontier import floor_of
from planning.gauntlet.results import Point, PolicyResult, Results, ScenarioResult

REFERENCES = frozenset({"fixed"})
"""No rivals: a fixed number that was found on the same load knows that load. It is shown for comparison."""
_LEVEL = 0.95
_EXACT = 1e-9


class RivalVerdict(StrEnum):
    """Ours against one rival in one scenario."""

    DOMINATES = "dominates"
    """Each of the rival's points is matched, and at least one is beaten beyond the interval."""
    TIES = "ties"
    """Each point is matched."""
    BELOW = "below"
    """Each point that meets the SLO is matched, but one that misses it has no match on both axes."""
    LOSES = "loses"
    """A point of the rival that meets the SLO has no match on both axes."""
    ALONE = "alone"
    """No point of the rival reaches the floor."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean and half the width of its interval; infinite for a single run."""

    mean: float
    half: float

    @property
    def above(self) -> bool:
        """Significantly over zero."""
        return self.mean - self.half > _EXACT

    @property
    def below(self) -> bool:
        """Significantly under zero."""
        return self.mean + self.half < -_EXACT


@dataclass(frozen=True, slots=True)
class Judgement:
    """`point`: the rival's worst-matched one; `attainment`, `hours`: ours minus the rival's, at our nearest point."""

    scenario: str
    rival: str
    verdict: RivalVerdict
    point: int | None = None
    attainment: MeanInterval | None = None
    hours: MeanInterval | None = None


def interval(differences: NDArray[np.float64]) -> MeanInterval:
    """The mean of paired differences with its interval: of width 0 if several are equal, infinite for one."""
    count = len(differences)
    mean = float(differences.mean())
    if count < 2:
        return MeanInterval(mean, math.inf)
    spread = float(differences.std(ddof=1)) / math.sqrt(count)
    return MeanInterval(mean, float(stdtrit(count - 1, 0.5 + _LEVEL / 2)) * spread)


def judge(contest: ScenarioResult, ours: str) -> list[Judgement]:
    """Ours against each of its rivals in one scenario."""
    own = contest.of(ours)
    if own is None:
        return []
    return [
        _against(contest, own, rival)
        for rival in contest.contenders
        if rival.policy != ours and rival.policy not in REFERENCES
    ]


def _against(contest: ScenarioResult, own: PolicyResult, rival: PolicyResult) -> Judgement:
    floor = floor_of(contest.target)
    asked = [index for index, point in enumerate(rival.points) if point.attainment >= floor]
    if not asked:
        return Judgement(contest.scenario, rival.policy, RivalVerdict.ALONE)
    beaten, lost = False, []
    for index in asked:
        attainment, hours = _nearest(own.points, rival.points[index])
        if attainment.below or hours.above:
            kept = rival.points[index].attainment >= contest.target
            verdict = RivalVerdict.LOSES if kept else RivalVerdict.BELOW
            gap = _gap(attainment, hours, rival.points[index])
            lost.append(((kept, gap), Judgement(contest.scenario, rival.policy, verdict, index, attainment, hours)))
        beaten = beaten or attainment.above or hours.below
    if lost:
        return max(lost, key=lambda one: one[0])[1]
    return Judgement(contest.scenario, rival.policy, RivalVerdict.DOMINATES if beaten else RivalVerdict.TIES)


def _nearest(own: Sequence[Point], other: Point) -> tuple[MeanInterval, MeanInterval]:
    """The differences at our point that is not worse, the best of them; otherwise at the one that lacks least."""
    found = [(interval(one.attainments - other.attainments), interval(one.hours - other.hours)) for one in own]
    good = [pair for pair in found if not pair[0].below and not pair[1].above]
    if good:
        return max(good, key=lambda pair: (pair[0].above + pair[1].below, pair[0].mean - pair[1].mean / _hours(other)))
    return min(found, key=lambda pair: _gap(pair[0], pair[1], other))


def _gap(attainment: MeanInterval, hours: MeanInterval, other: Point) -> float:
    """The lack: as a share of the requests, plus a share of the other's replica-hours."""
    return max(0.0, -attainment.mean) + max(0.0, hours.mean) / _hours(other)


def _hours(point: Point) -> float:
    return max(_EXACT, point.mean_hours)


@dataclass(frozen=True, slots=True)
class Regret:
    """A policy's pick over one or several scenarios: its replica-hours, those of the oracle, and the unavoidable ones
    of the known-rate baseline beyond it."""

    policy: str
    attainment: float
    hours: float
    oracle: float
    unavoidable: float
    flaps: float
    usd: float

    @property
    def ours(self) -> float:
        """Replica-hours beyond the known-rate baseline."""
        return self.hours - self.oracle - self.unavoidable

    @property
    def share(self) -> float:
        """The same as a share of the oracle's replica-hours."""
        return self.ours / self.oracle if self.oracle else math.nan


def regret(contests: Sequence[ScenarioResult], policy: str) -> Regret | None:
    """Of the policy's picks over these scenarios together; None if it took part in none."""
    found = [(contest, one.picked) for contest in contests if (one := contest.of(policy)) is not None]
    if not found:
        return None
    requests = np.concatenate([[score.requests for score in point.scores] for _, point in found])
    attained = np.concatenate([point.attainments for _, point in found])
    oracle = sum(float(contest.oracle_hours.mean()) for contest, _ in found)
    known = sum(float(contest.known_hours.mean()) for contest, _ in found)
    return Regret(
        policy,
        float(np.average(attained, weights=requests)) if requests.any() else 1.0,
        sum(point.mean_hours for _, point in found),
        oracle,
        known - oracle,
        sum(point.mean_of("flaps") for _, point in found),
        sum(point.mean_of("usd") for _, point in found),
    )


def cliffs(results: Results, steps: Mapping[str, float], policy: str) -> tuple[list[tuple[float, float]], float]:
    """The policy's attainment at each step of a sweep (`steps`: scenario -> the swept figure), and the first step below
    the target; infinite if there is none."""
    found = []
    cliff = math.inf
    for name, value in sorted(steps.items(), key=lambda step: step[1]):
        contest = results.of(name)
        one = None if contest is None else contest.of(policy)
        if contest is None or one is None:
            continue
        found.append((value, one.picked.attainment))
        if one.picked.attainment < contest.target:
            cliff = min(cliff, value)
    return found, cliff
