"""raylane's own scaling policy. It computes up to four needs, in replicas, and asks for the largest.

c: work that a full replica does in a second; S: how long a start takes; R: how long a request stays (`replicas.py`).

    demand     (rate + z * sqrt(rate * D / R)) / (utilisation * c)     z: standard deviations by `short_cost` (`sigmas`)
               rate and D, how bursty it is: `demand.py`. While requests stay R, bursts are averaged over R
    forecast   (forecast over the next S + down_after_s + z * its error) / (utilisation * c)
    backlog    (rate + B(S) / max(60 s, S)) / c, where the work ahead in a lane takes longer than half of its SLO
               B(S): what waits, plus what arrives in S seconds, less what the replicas do in S seconds, those that
               become ready until then included
    occupancy  while c is unknown: booked sequences or KV blocks, and what waits, averaged over R / (utilisation * what
               a replica holds). What waits adds a replica at a time

    up         to the largest need, if it exceeds the applied number by MARGIN (a backlog needs none). Starting replicas
               count as applied
    down       to the largest need of the last max(down_after_s, S), plus MARGIN, and at most to half of the largest
               number of that time: traffic that stopped may be back soon
    to zero    when nothing has arrived, and none was starting, for zero_after_s

Replicas that have been unresponsive for long are left out of the computation, and added to the result. Everything is
per model and cell. Bounds, operators and stale facts are handled by `autoscaling/scaler`.
"""

import math
from collections import deque
from dataclasses import replace
from statistics import NormalDist
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.backlog.demand import Demand, PooledHeadroom
from autoscaling.policies.backlog.replicas import CapacityEstimate, Occupied, Residence, StartUps, UnresponsiveReplicas
from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyEntry, PolicyReason, ReplicaProfile
from autoscaling.policies.settings import Range
from autoscaling.signals.signals import Signals
from cluster.spec import Autoscaling, Backlog

MARGIN = 0.25
"""Of a replica: by how much the need must leave the number for a step."""
TARGET = 0.5
"""The share of an SLO that requests may wait."""
RECOVER_S = 60.0
_USUAL_START_S = 60.0
"""The longest start for which `short_cost` applies as given."""
_ROUNDING = 1e-9
_NEEDS = (PolicyReason.DEMAND, PolicyReason.FORECAST, PolicyReason.BACKLOG, PolicyReason.OCCUPANCY)
Terms = dict[str, float]


class BacklogSettings(Backlog):
    """The spec's section `backlog`, and how often the policy is asked (seconds)."""

    period_s: Annotated[float, Field(gt=0)] = Autoscaling().period_s


def sigmas(settings: Backlog, start_s: float) -> float:
    """How many standard deviations of the demand's noise to cover: the newsvendor's quantile, short_cost /
    (short_cost + 1). A shortage lasts for a start, so the cost grows in proportion where a start takes longer than a
    minute."""
    cost = settings.short_cost * max(1.0, start_s / _USUAL_START_S)
    return NormalDist().inv_cdf(cost / (cost + 1.0))


class BacklogPolicy:
    """See the module's docstring."""

    name: ClassVar[str] = "backlog"

    def __init__(self, settings: BacklogSettings, replica_profile: ReplicaProfile) -> None:
        self.settings = settings
        self.period_s = settings.period_s
        self.capacity = CapacityEstimate(replica_profile)
        self._demand = Demand()
        self._start_ups = StartUps(replica_profile.start_up_s)
        self._residence = Residence()
        self._occupied = Occupied()
        self._unresponsive = UnresponsiveReplicas()
        self._misses = Misses()
        self._needs = LargestOfLate()
        self._applied = LargestOfLate()
        self._pooled: PooledHeadroom | None = None
        """Once a peer has had something to spare."""
        self._idle_from_s = math.inf
        """The first moment, or the last with a starting replica."""

    def adopt(self, old: "BacklogPolicy") -> None:
        """Takes over what another policy has learned, under its own settings."""
        vars(self).update({name: part for name, part in vars(old).items() if name not in ("settings", "period_s")})

    def resume(self, old: "BacklogPolicy", idle_s: float) -> None:
        """Takes over what stays true of a policy that was last asked `idle_s` ago: what a replica carries."""
        self.capacity.resume(old.capacity, idle_s)

    def assume_start_up(self, factor: float) -> None:
        """Assumes from now on that starts take `factor` times as long. For questions of the form "what if"."""
        self._start_ups.assume(factor)

    def decide(self, signals: Signals) -> DesiredReplicas:
        for part in (self._start_ups, self.capacity, self._residence, self._misses):
            part.look(signals)
        self._demand.look(signals, self._residence.seconds)
        if signals.starting or signals.at_s < self._idle_from_s:
            self._idle_from_s = signals.at_s
        unresponsive = self._unresponsive.look(signals)
        desired = self._decide(replace(signals, applied=signals.applied - unresponsive) if unresponsive else signals)
        if unresponsive:
            terms = {**desired.terms, "unresponsive": float(unresponsive)}
            desired = replace(desired, replicas=desired.replicas + unresponsive, terms=terms)
        return replace(desired, concern=Concern.NOTHING_WAITS) if self._misses.without_waiting else desired

    def _decide(self, signals: Signals) -> DesiredReplicas:
        """The number for the replicas that respond."""
        now, applied = signals.at_s, signals.applied
        terms = self._terms(signals)
        needs = [(terms[reason.value], reason) for reason in _NEEDS if reason.value in terms]
        needed, reason = max(needs, key=lambda one: one[0], default=(0.0, PolicyReason.STEADY))
        self._needs.look(now, needed)
        self._applied.look(now, applied)
        if not applied:
            return self._from_zero(signals, needed, terms)
        urgent = terms.get(PolicyReason.BACKLOG.value, 0.0)
        more = math.ceil(max(needed - MARGIN, urgent) - _ROUNDING)
        if more > applied:
            return DesiredReplicas(more, reason, terms)
        if applied == 1 and self._is_idle(signals, terms):
            return DesiredReplicas(0, PolicyReason.IDLE, terms)
        if math.ceil(needed + MARGIN - _ROUNDING) >= applied or applied == 1:
            return DesiredReplicas(applied, PolicyReason.STEADY, terms)
        largest, most_applied = self._needs.within(now, self._span_s), self._applied.within(now, self._span_s)
        if largest is None or most_applied is None:
            return DesiredReplicas(applied, PolicyReason.COOLING, terms)
        terms["needed_most"] = largest
        fewer = max(1, math.ceil(largest + MARGIN - _ROUNDING), math.ceil(most_applied / 2))
        if fewer >= applied:
            return DesiredReplicas(applied, PolicyReason.COOLING, terms)
        return DesiredReplicas(fewer, PolicyReason.CONSOLIDATE, terms)

    def _terms(self, signals: Signals) -> Terms:
        """Every quantity of the equations above that is known at this moment, by name."""
        settings, demand, utilisation = self.settings, self._demand, self.settings.utilisation
        start_s, stays_s, c = self._start_ups.expected_s, self._residence.seconds, self.capacity.per_s
        terms = {"rate": demand.rate, "span_s": demand.span_s, "noise": demand.noise, "residence_s": stays_s}
        terms |= {"start_up_s": start_s, "waiting_work": signals.backlog}
        if c is None:
            occupied = self._occupied.look(signals, stays_s)
            if occupied is not None:
                terms[PolicyReason.OCCUPANCY.value] = occupied / utilisation
            if signals.waiting and signals.ready:  # one more at a time, until it is known what one carries
                terms[PolicyReason.BACKLOG.value] = float(signals.applied + (not signals.starting))
            return terms
        z = sigmas(settings, start_s)
        headroom = z * math.sqrt(demand.rate * demand.noise / stays_s)
        terms |= {"replica_work_per_s": c, "capacity_doubt": self.capacity.doubt, "sigmas": z}
        if signals.peers_spare and self._pooled is None:
            self._pooled = PooledHeadroom(signals.at_s)
        if self._pooled is not None:
            terms["peers_spare"] = self._pooled.look(signals, start_s)
            headroom = max(0.0, headroom - utilisation * c * terms["peers_spare"])
        terms["headroom"] = headroom
        terms[PolicyReason.DEMAND.value] = (demand.rate + headroom) / (utilisation * c)
        if signals.forecast is not None:
            until_s = signals.unix_s + start_s + self._span_s
            expected = signals.forecast.most_between(signals.unix_s, until_s)
            if expected is not None:
                terms["forecast_rate"], terms["forecast_error"] = expected
                terms[PolicyReason.FORECAST.value] = (expected[0] + z * expected[1]) / (utilisation * c)
        self._add_backlog(signals, c, start_s, terms)
        return terms

    def _add_backlog(self, signals: Signals, c: float, start_s: float, terms: Terms) -> None:
        if self._wait_of_target(signals, c * signals.ready, terms) <= 1.0:
            return
        starting_s = sum(max(0.0, start_s - due_s) for due_s in self._start_ups.due_in_s(signals.at_s))
        done = c * (signals.ready * start_s + starting_s)
        left = max(0.0, signals.backlog + self._demand.rate * start_s - done)
        terms["backlog_then"] = left
        terms[PolicyReason.BACKLOG.value] = (self._demand.rate + left / max(RECOVER_S, start_s)) / c

    def _wait_of_target(self, signals: Signals, work_per_s: float, terms: Terms) -> float:
        """The largest wait in a lane, behind the work of the lanes with tighter SLOs, as a multiple of what may be
        waited there. Promoted requests have waited long: theirs is the tightest SLO."""
        slo_s: dict[str, float] = {}
        for flow in signals.flows:
            if flow.arrived:
                slo_s[flow.lane] = min(flow.slo_s, slo_s.get(flow.lane, math.inf))
        tightest = min(slo_s.values(), default=1.0)
        waiting = [(slo_s.get(one.name, tightest), one.work_tokens) for one in signals.lanes if one.work_tokens > 0]
        ahead, worst = 0.0, 0.0
        for target, work in sorted(waiting):
            ahead += work
            wait_s = ahead / work_per_s if work_per_s > 0 else 1e9
            if wait_s / (TARGET * target) > worst:
                worst = min(1e9, wait_s / (TARGET * target))
                terms["wait_s"], terms["slo_s"] = min(1e9, wait_s), target
        return worst

    def _from_zero(self, signals: Signals, needed: float, terms: Terms) -> DesiredReplicas:
        arrived = self._demand.last_arrival_s == signals.at_s  # and may be answered elsewhere at once
        if arrived or signals.waiting or signals.running:
            return DesiredReplicas(max(1, math.ceil(needed - _ROUNDING)), PolicyReason.WAKE, terms)
        ahead = terms.get(PolicyReason.FORECAST.value, 0.0)
        if ahead >= 0.5:
            return DesiredReplicas(math.ceil(ahead), PolicyReason.FORECAST, terms)
        return DesiredReplicas(0, PolicyReason.STEADY, terms)

    def _is_idle(self, signals: Signals, terms: Terms) -> bool:
        """Whether nothing has arrived for so long that the last replica may go, and no forecast needs it."""
        idle_s = signals.at_s - max(self._demand.last_arrival_s, self._idle_from_s)
        busy = signals.waiting or signals.running or terms.get(PolicyReason.FORECAST.value, 0.0) >= 0.5
        return not busy and idle_s >= self.settings.zero_after_s

    @property
    def _span_s(self) -> float:
        return max(self.settings.down_after_s, self._start_ups.expected_s)


class Misses:
    """`without_waiting`: whether SLOs are missed BURN times as fast as they allow, although requests hardly wait: less
    than WAITS of the tightest SLO on average. By sums with a half-life of some minutes."""

    BURN, WAITS, HALF_S, MIN_MISSED = 10.0, 0.1, 150.0, 5.0

    def __init__(self) -> None:
        self.without_waiting = False
        self._last: tuple[float, int, dict[str, tuple[int, int]], int] | None = None
        self._shares: dict[str, tuple[float, float]] = {}
        self._waited_s = self._arrived = 0.0

    def look(self, signals: Signals) -> None:
        now, counts = signals.at_s, signals.judged
        before, self._last = self._last, (now, signals.epoch, counts, signals.arrived)
        if before is None or before[1] != signals.epoch or signals.arrived < before[3]:
            return
        kept = 0.5 ** ((now - before[0]) / self.HALF_S)
        self._waited_s = kept * self._waited_s + signals.waiting * (now - before[0])
        self._arrived = kept * self._arrived + signals.arrived - before[3]
        burns = False
        for name, (met, missed) in counts.items():
            old, sums = before[2].get(name, (0, 0)), self._shares.get(name, (0.0, 0.0))
            sums = (kept * sums[0] + met - old[0], kept * sums[1] + missed - old[1])
            self._shares[name] = sums
            allowed = max(1e-6, signals.allowed(name)) * (sums[0] + sums[1])
            burns = burns or (sums[1] >= self.MIN_MISSED and sums[1] >= min(self.BURN * allowed, sum(sums) / 2))
        slo_s = min((flow.slo_s for flow in signals.flows if flow.arrived), default=0.0)
        self.without_waiting = burns and self._waited_s < self.WAITS * slo_s * self._arrived


class LargestOfLate:
    """The largest of a quantity over the last seconds, kept as a descending queue."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None
        self._longest_s = 0.0

    def look(self, now: float, value: float) -> None:
        if self._since_s is None:
            self._since_s = now
        while self._seen and self._seen[-1][1] <= value:
            self._seen.pop()
        self._seen.append((now, value))

    def within(self, now: float, span_s: float) -> float | None:
        """The largest of the last `span_s` seconds; None while less than that was seen. Spans may differ between
        calls."""
        if self._since_s is None or now - self._since_s < span_s:
            return None
        self._longest_s = max(self._longest_s, span_s)
        while len(self._seen) > 1 and self._seen[0][0] < now - self._longest_s:
            self._seen.popleft()
        return next((value for at_s, value in self._seen if at_s >= now - span_s), self._seen[-1][1])


ENTRY = PolicyEntry(
    "backlog",
    BacklogSettings,
    BacklogPolicy,
    {
        "short_cost": Range(1, 100_000, log=True),
        "utilisation": Range(0.5, 1.0),
        "down_after_s": Range(60, 1_800, log=True),
    },
)
