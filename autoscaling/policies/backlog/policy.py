"""raylane's own scaling policy. It computes up to five needs, in replicas, and asks for the largest.

c: work that a full replica does in a second; S: how long a start takes; R: how long a request stays (`replicas.py`).

    demand     (rate + max(0, trend) * (S + span / 2) + z * error) / (utilisation * c)         z: `sigmas(settings, S)`
               Of a surge over the last ten minutes' rate, only the share counts that is known to stay (`demand.py`).
               error^2 = rate * D / span + rate * D / R         the error of the estimated rate, and bursts within R
    forecast   (forecast over the next S + down span + z * its error) / (utilisation * c)
    backlog    (rate + B(S) / max(recover_s, S)) / c, where a lane's wait exceeds its target (`slo.py`)
               B(S): what waits, plus what arrives in S seconds, less what the replicas do in S seconds, those that
               become ready until then included
    occupancy  booked sequences or KV blocks, averaged over R / (occupancy * what a replica holds)
    SLO burn   one more than there are while SLOs are missed `burn` times too fast, unless a replica starts or another
               need already adds one

    up         to the largest need, if it exceeds the applied number by `margin`. Starting replicas count as applied.
               The backlog and missed SLOs need no margin.
    down       to the largest need of the last max(down_after_s, down_starts * S), plus `margin`
    pace       reversals, small steps and steps that follow each other wait (`pace.py: Cooldown`). When traffic stops,
               replicas go by halves (`pace.py: TrafficDrop`)

Replicas that have been unresponsive for long are left out of the computation, and added to the result. Everything is
per model and cell. Bounds, operators and stale facts are handled by `autoscaling/scaler`.
"""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.backlog.demand import Demand, Persistence, PooledHeadroom
from autoscaling.policies.backlog.pace import SETTLE_S, Cooldown, Stabiliser, TrafficDrop
from autoscaling.policies.backlog.replicas import CapacityEstimate, Occupied, Residence, StartUps, UnresponsiveReplicas
from autoscaling.policies.backlog.slo import Burn, LaneTargets, Relief, worst
from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyEntry, PolicyReason, ReplicaProfile
from autoscaling.policies.settings import Range
from autoscaling.signals.signals import Signals
from cluster.spec import Autoscaling, Backlog

_ROUNDING = 1e-9
_USUAL_START_S = 60.0
"""The longest start for which `short_cost` applies as given."""
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
        self._demand = Demand(settings.level_s)
        self._capacity = CapacityEstimate(replica_profile)
        self._start_ups = StartUps(replica_profile.start_up_s)
        self._residence = Residence()
        self._occupied = Occupied()
        self._targets = LaneTargets(settings)
        self._burn = Burn()
        self._relief = Relief()
        self._persistence = Persistence()
        self._down = Stabiliser()
        self._load = Stabiliser()
        self._cooldown = Cooldown()
        self._traffic_drop = TrafficDrop()
        self._unresponsive = UnresponsiveReplicas()
        self._pooled: PooledHeadroom | None = None
        """Once a peer has had something to spare."""
        self._began_s = math.inf

    def adopt(self, old: "BacklogPolicy") -> None:
        """Takes over what another policy has learned, under its own settings."""
        vars(self).update({name: part for name, part in vars(old).items() if name not in ("settings", "period_s")})
        self._demand = self._demand.averaged_over(self.settings.level_s)
        self._targets.settings = self.settings

    def assume_start_up(self, factor: float) -> None:
        """Assumes from now on that starts take `factor` times as long. For questions of the form "what if"."""
        self._start_ups.assume(factor)

    def decide(self, signals: Signals) -> DesiredReplicas:
        for part in (self._demand, self._start_ups, self._capacity, self._residence, self._targets, self._burn):
            part.look(signals)
        self._began_s = min(self._began_s, signals.at_s)
        self._persistence.look(signals, self._demand, self._start_ups.expected_s, self._capacity.per_s)
        unresponsive = self._unresponsive.look(signals)
        if not unresponsive:
            desired = self._decide(signals)
            self._cooldown.wants(desired.replicas)
            return desired
        desired = self._decide(replace(signals, applied=signals.applied - unresponsive))
        self._cooldown.wants(desired.replicas)
        terms = {**desired.terms, "unresponsive": float(unresponsive)}
        return replace(desired, replicas=desired.replicas + unresponsive, terms=terms)

    def _decide(self, signals: Signals) -> DesiredReplicas:
        """The number for the replicas that respond."""
        now, applied, settings = signals.at_s, signals.applied, self.settings
        terms = self._terms(signals)
        reason, needed = _largest(terms)
        load = self._load_of(terms)
        self._cooldown.within_s = settings.reversal_spans * self._span_s
        self._cooldown.look(now, applied, load)
        self._load.look(now, load)
        self._traffic_drop.look(signals)
        if not applied:
            return self._from_zero(signals, terms)
        more = math.ceil(needed - (0.0 if reason is PolicyReason.BACKLOG else settings.margin) - _ROUNDING)
        rests = (
            more > applied
            and reason in (PolicyReason.DEMAND, PolicyReason.OCCUPANCY)
            and self._cooldown.delays_step_up(now, more)
        )
        concern = None
        if (more <= applied or rests) and self._burn.worst.rate >= settings.burn:
            concern = self._concern(signals)
            if concern is None and self._may_step(signals):
                reason, more, rests = PolicyReason.SLO_BURN, applied + 1, False
                needed = float(more)
        self._down.look(now, needed)
        if rests:
            desired = DesiredReplicas(applied, PolicyReason.RESTING, terms)
        elif more > applied:
            desired = DesiredReplicas(more, reason, terms)
        else:
            desired = self._fewer(signals, needed, terms)
        return desired if concern is None else replace(desired, concern=concern)

    def _concern(self, signals: Signals) -> Concern | None:
        return self._relief.concern(signals.at_s, signals.ready, self._burn.worst, self._burn.seen_s, self._demand.rate)

    def _may_step(self, signals: Signals) -> bool:
        """Whether missed SLOs add a replica now: none starts, and the last such step has been judged."""
        now, ready = signals.at_s, signals.ready
        if signals.starting or not self._relief.open(now, ready, self._burn.seen_s):
            return False
        self._relief.stepped(now, ready, self._burn.worst, self._demand.rate)
        return True

    def _load_of(self, terms: Terms) -> float:
        """What there is to do, in replicas without any headroom: the larger of arriving and booked work."""
        arriving = self._demand.rate / terms["replica_work_per_s"] if "replica_work_per_s" in terms else 0.0
        return max(arriving, terms.get(PolicyReason.OCCUPANCY.value, 0.0) * self.settings.occupancy)

    def _terms(self, signals: Signals) -> Terms:
        """Every quantity of the equations above that is known at this moment, by name."""
        settings, demand = self.settings, self._demand
        start_s, c = self._start_ups.expected_s, self._capacity.per_s
        stays, rate, rate_error = self._persistence.expected(demand)
        terms = {"rate": rate, "stays": stays, "start_up_s": start_s, "waiting_work": signals.backlog}
        terms |= {"burn": self._burn.worst.rate, "burn_waits": self._burn.worst.wait_share}
        occupied = self._occupied.look(signals, self._residence.seconds)
        if occupied is not None:
            terms[PolicyReason.OCCUPANCY.value] = occupied / settings.occupancy
        if c is None:
            if signals.backlog and signals.ready:
                terms[PolicyReason.BACKLOG.value] = float(signals.applied + (not signals.starting))
            return terms
        per_replica, z = settings.utilisation * c, sigmas(settings, start_s)
        trend = demand.trend if settings.trend else 0.0
        error = math.hypot(math.sqrt(rate * demand.noise / self._residence.seconds), rate_error)
        terms |= {"replica_work_per_s": c, "trend": trend, "error": error}
        terms |= {"span_s": demand.span_s, "residence_s": self._residence.seconds}
        ahead = max(0.0, trend) * (start_s + demand.span_s / 2)
        noise = z * error
        if signals.peers_spare and self._pooled is None:
            self._pooled = PooledHeadroom(signals.at_s)
        if self._pooled is not None:
            terms["peers_spare"] = self._pooled.look(signals, start_s)
            noise = per_replica * self._pooled.left_of(noise / per_replica)
        terms[PolicyReason.DEMAND.value] = (rate + ahead + noise) / per_replica
        if signals.forecast is not None:
            expected = signals.forecast.most_between(signals.unix_s, signals.unix_s + start_s + self._span_s)
            if expected is not None:
                terms["forecast_rate"], terms["forecast_error"] = expected
                terms[PolicyReason.FORECAST.value] = (expected[0] + z * expected[1]) / per_replica
        self._add_backlog(signals, rate, c, start_s, terms)
        return terms

    def _add_backlog(self, signals: Signals, rate: float, c: float, start_s: float, terms: Terms) -> None:
        found = worst(self._targets.waits(signals), c * signals.ready)
        if found is None:
            return
        terms["wait_of_target"], terms["target_s"] = min(found[0], 1e9), found[1].target_s
        if found[0] <= 1.0:
            return
        starting_s = [max(0.0, start_s - due_s) for due_s in self._start_ups.due_in_s(signals.at_s)]
        done = c * signals.ready * start_s + sum(c * working_s for working_s in starting_s)
        left = max(0.0, signals.backlog + rate * start_s - done)
        terms["backlog_then"] = left
        terms[PolicyReason.BACKLOG.value] = (rate + left / max(self.settings.recover_s, start_s)) / c

    def _from_zero(self, signals: Signals, terms: Terms) -> DesiredReplicas:
        needed = _largest(terms)[1]
        self._down.look(signals.at_s, needed)
        if signals.waiting or signals.running:
            return DesiredReplicas(max(1, math.ceil(needed - _ROUNDING)), PolicyReason.WAKE, terms)
        ahead = terms.get(PolicyReason.FORECAST.value, 0.0)
        if ahead >= 0.5:
            return DesiredReplicas(math.ceil(ahead), PolicyReason.FORECAST, terms)
        return DesiredReplicas(0, PolicyReason.STEADY, terms)

    def _fewer(self, signals: Signals, needed: float, terms: Terms) -> DesiredReplicas:
        """The applied number or fewer, where no more are needed."""
        applied, now, cooldown = signals.applied, signals.at_s, self._cooldown

        def stays(reason: PolicyReason) -> DesiredReplicas:
            return DesiredReplicas(applied, reason, terms)

        if applied == 1 and self._is_idle(signals, terms):
            return DesiredReplicas(0, PolicyReason.IDLE, terms)
        if needed + self.settings.margin > applied - 1 + _ROUNDING:
            return stays(PolicyReason.STEADY if needed > applied - 1 or applied == 1 else PolicyReason.NO_ROOM)
        span_s = self._span_s * cooldown.patience(now)
        found = self._sufficed(now, span_s)
        if found is None:
            return stays(PolicyReason.COOLING)
        maximum, fewer = found
        terms["needed_most"] = maximum
        if fewer >= applied:
            return stays(PolicyReason.COOLING if maximum < applied - 1 else PolicyReason.NO_ROOM)
        if cooldown.small(fewer):
            span_s = max(span_s, cooldown.within_s)
            found = None if cooldown.rests(now) else self._sufficed(now, span_s)
            if found is None or found[1] >= applied:
                return stays(PolicyReason.RESTING)
            fewer = found[1]
        soon = self._sufficed(now, max(span_s - SETTLE_S, min(span_s, SETTLE_S)))
        settled = soon is None or cooldown.settled(now, fewer, soon[1])
        if not settled or (cooldown.follows(now, fewer) and not self._traffic_drop.lasts):
            return stays(PolicyReason.COOLING)
        allowed = self._traffic_drop.allowed(now, cooldown.within_s, fewer)
        reason = PolicyReason.CONSOLIDATE if allowed == fewer else PolicyReason.TRAFFIC_DROP
        return DesiredReplicas(allowed, reason, terms)

    def _sufficed(self, now: float, span_s: float) -> tuple[float, int] | None:
        """The largest need of the last `span_s` seconds, and how few replicas carry it; None where less was seen."""
        maximum, max_load = self._down.maximum(now, span_s), self._load.maximum(now, span_s)
        if maximum is None or max_load is None:
            return None
        carrying = math.ceil(maximum + self.settings.margin - _ROUNDING)
        return maximum, max(1, carrying, self._cooldown.minimum(now, max_load))

    def _is_idle(self, signals: Signals, terms: Terms) -> bool:
        """Whether nothing has arrived for so long that the last replica may go, and no forecast needs it."""
        idle_s = signals.at_s - max(self._demand.last_arrival_s, self._began_s)
        busy = signals.waiting or signals.running or terms.get(PolicyReason.FORECAST.value, 0.0) >= 0.5
        return not busy and idle_s >= self.settings.zero_after_s * self._cooldown.patience(signals.at_s)

    @property
    def _span_s(self) -> float:
        return max(self.settings.down_after_s, self.settings.down_starts * self._start_ups.expected_s)


def _largest(terms: Terms) -> tuple[PolicyReason, float]:
    """The largest need and its value; 0 where there is none."""
    needs = [(terms[reason.value], reason) for reason in _NEEDS if reason.value in terms]
    needed, reason = max(needs, key=lambda one: one[0], default=(0.0, PolicyReason.STEADY))
    return reason, needed


ENTRY = PolicyEntry(
    "backlog",
    BacklogSettings,
    BacklogPolicy,
    {
        "short_cost": Range(1, 100_000, log=True),
        "utilisation": Range(0.7, 1.0),
        "occupancy": Range(0.7, 1.0),
        "level_s": Range(60, 600, log=True),
        "target_wait": Range(0.2, 1.0),
        "recover_s": Range(10, 300, log=True),
        "down_after_s": Range(10, 1_800, log=True),
        "down_starts": Range(0.1, 4, log=True),
        "margin": Range(0.0, 0.5),
        "burn": Range(3, 100, log=True),
    },
)
