"""The backlog policy. In replicas' worth of work, with c the work that a full replica does in a second:

    demand     (rate + max(0, trend) * (S + span / 2) + z * error) / (utilisation * c)       S: what a start takes; z:
               settings.sigmas(S) rate: of a surge over the last ten minutes' only the share that is known to stay
               (`persistence.py`)
               error^2 = rate * D / span + rate * D / R                            of the rate's estimate, and of bursts
                                                                                   over a residence time R
    forecast   (forecast over the next S + down span + z * its error) / (utilisation * c)
    backlog    (rate + B(S) / max(recover_s, S)) / c, only where a lane's wait is over its target B(S) = what waits,
               plus what arrives, less what the replicas there and those due until then do, in S seconds
    occupancy  sequences or KV blocks booked, averaged over R / (occupancy * what a replica holds)
    burn       one more than there are, if none is due and nothing else brings one, while SLOs are missed `burn` times
               too fast

    up         the largest of them, if it is more than applied by `margin` (what is starting is in it: credited on the
               way up only); what waits, and promises that are missed, need no margin
    down       the largest over the last max(down_after_s, down_starts * S), plus `margin`: what then still carries the
               busiest moment
    pace       not back and forth, small steps after a rest, steps down together (`cooldown.py`); while next to nothing
               comes, by halves (`traffic_drop.py`)

Replicas that have been unresponsive for long are left out of all this, and put on top at the end (`unresponsive.py`).
Everything is per model and cell. Nothing here knows bounds, operators or broken signals (`scaler/`).
"""

import math
from dataclasses import replace
from typing import ClassVar

from autoscaling.policies.backlog.demand import Demand, Persistence
from autoscaling.policies.backlog.pace import SETTLE_S, Cooldown, Stabiliser, TrafficDrop
from autoscaling.policies.backlog.replicas import CapacityEstimate, Occupied, Residence, StartUps, UnresponsiveReplicas
from autoscaling.policies.backlog.settings import BacklogSettings
from autoscaling.policies.backlog.slo import Burn, LaneTargets, Relief, worst
from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyReason, ReplicaProfile
from autoscaling.signals.signals import Signals

_ROUNDING = 1e-9


class BacklogPolicy:
    """See the module's docstring."""

    name: ClassVar[str] = "backlog"
    latency_span_s = 0.0

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
        self._began_s = -math.inf

    def adopt(self, old: "BacklogPolicy") -> None:
        """Goes on with what another one has learned; only settings differ."""
        vars(self).update({name: part for name, part in vars(old).items() if name not in ("settings", "period_s")})
        self._demand = self._demand.averaged_over(self.settings.level_s)
        self._targets.settings = self.settings

    def assume_start_up(self, factor: float) -> None:
        """Believes from now on that starts take so many times as long: for whoever asks what would be different
        then."""
        self._start_ups.assume(factor)

    def decide(self, signals: Signals) -> DesiredReplicas:
        """See `Policy`."""
        for part in (self._demand, self._start_ups, self._capacity, self._residence, self._targets, self._burn):
            part.look(signals)
        if math.isinf(self._began_s):
            self._began_s = signals.at_s
        self._persistence.look(signals, self._demand, self._start_ups.expected_s, self._capacity.per_s)
        unresponsive = self._unresponsive.look(signals)
        desired = self._decide(replace(signals, applied=signals.applied - unresponsive) if unresponsive else signals)
        self._cooldown.wants(desired.replicas)
        return (
            replace(
                desired,
                replicas=desired.replicas + unresponsive,
                terms={**desired.terms, "unresponsive": float(unresponsive)},
            )
            if unresponsive
            else desired
        )

    def _decide(self, signals: Signals) -> DesiredReplicas:
        terms = self._terms(signals)
        policy_reason, needed = _largest(terms)
        load = self._load_of(terms)
        self._cooldown.within_s = self.settings.reversal_spans * self._span_s
        self._cooldown.look(signals.at_s, signals.applied, load)
        self._load.look(signals.at_s, load)
        self._traffic_drop.look(signals)
        if not signals.applied:
            return self._from_zero(signals, terms)
        more = math.ceil(needed - (0.0 if policy_reason is PolicyReason.BACKLOG else self.settings.margin) - _ROUNDING)
        rests = more > signals.applied and self._may_wait(signals.at_s, policy_reason, more)
        more = signals.applied if rests else more
        concern = None
        if more <= signals.applied and self._burn.worst.rate >= self.settings.burn:
            concern = self._concern(signals)
            if concern is None and self._may_step(signals):
                policy_reason, more = PolicyReason.SLO_BURN, signals.applied + 1
                needed = float(more)
        self._down.look(signals.at_s, needed)
        if more > signals.applied:
            desired = DesiredReplicas(more, policy_reason, terms)
        else:
            desired = (
                DesiredReplicas(more, PolicyReason.RESTING, terms) if rests else self._fewer(signals, needed, terms)
            )
        return desired if concern is None else replace(desired, concern=concern)

    def _concern(self, signals: Signals) -> Concern | None:
        """Why no replica would help against the SLOs that are missed."""
        return self._relief.concern(signals.at_s, signals.ready, self._burn.worst, self._burn.seen_s, self._demand.rate)

    def _may_step(self, signals: Signals) -> bool:
        """Whether one more is asked for on behalf of missed SLOs."""
        now, ready = signals.at_s, signals.ready
        if signals.starting or not self._relief.open(now, ready, self._burn.seen_s):
            return False
        self._relief.stepped(now, ready, self._burn.worst, self._demand.rate)
        return True

    def _load_of(self, terms: dict[str, float]) -> float:
        """What there is to do, in replicas' worth, without any headroom: by what arrives or by what is booked,
        whichever is more."""
        arriving = self._demand.rate / terms["replica_work_per_s"] if "replica_work_per_s" in terms else 0.0
        return max(arriving, terms.get(PolicyReason.OCCUPANCY.value, 0.0) * self.settings.occupancy)

    def _terms(self, signals: Signals) -> dict[str, float]:
        """Every quantity of the equations above that exists at this moment, by name."""
        settings = self.settings
        start_s, c = self._start_ups.expected_s, self._capacity.per_s
        stays, rate, rate_error = self._expected()
        terms = {"rate": rate, "stays": stays, "start_up_s": start_s, "waiting_work": signals.backlog}
        terms |= {"burn": self._burn.worst.rate, "burn_waits": self._burn.worst.wait_share}
        occupied = self._occupied.look(signals, self._residence.seconds)
        if occupied is not None:
            terms[PolicyReason.OCCUPANCY.value] = occupied / settings.occupancy
        if c is None:
            if signals.backlog and signals.ready:
                terms[PolicyReason.BACKLOG.value] = (
                    signals.applied + 1.0 if not signals.starting else float(signals.applied)
                )
            return terms
        per_replica = settings.utilisation * c
        trend = self._demand.trend if settings.trend else 0.0
        burst = math.sqrt(rate * self._demand.noise / self._residence.seconds)
        error = math.hypot(burst, rate_error)
        terms |= {
            "replica_work_per_s": c,
            "trend": trend,
            "error": error,
            "span_s": self._demand.span_s,
            "residence_s": self._residence.seconds,
        }
        terms[PolicyReason.DEMAND.value] = (
            rate + max(0.0, trend) * (start_s + self._demand.span_s / 2) + settings.sigmas(start_s) * error
        ) / per_replica
        if signals.forecast is not None:
            expected = signals.forecast.most_between(signals.unix_s, signals.unix_s + start_s + self._span_s)
            if expected is not None:
                terms["forecast_rate"], terms["forecast_error"] = expected
                terms[PolicyReason.FORECAST.value] = (
                    expected[0] + settings.sigmas(start_s) * expected[1]
                ) / per_replica
        self._add_backlog(signals, rate, c, start_s, terms)
        return terms

    def _expected(self) -> tuple[float, float, float]:
        """The share of a surge that stays until what is asked for now is there; the rate that is left then, and its
        error."""
        demand = self._demand
        if demand.rate <= demand.usual or demand.trend:
            return 1.0, demand.rate, demand.error
        share = self._persistence.share(demand.span_s)
        error = demand.usual_error + share * max(0.0, demand.error - demand.usual_error)
        return share, demand.usual + share * (demand.rate - demand.usual), error

    def _add_backlog(self, signals: Signals, rate: float, c: float, start_s: float, terms: dict[str, float]) -> None:
        found = worst(self._targets.waits(signals), c * signals.ready)
        if found is None:
            return
        terms["wait_of_target"], terms["target_s"] = min(found[0], 1e9), found[1].target_s
        if found[0] <= 1.0:
            return
        done = c * signals.ready * start_s + sum(
            c * max(0.0, start_s - due_s) for due_s in self._start_ups.due_in_s(signals.at_s)
        )
        left = max(0.0, signals.backlog + rate * start_s - done)
        terms["backlog_then"] = left
        terms[PolicyReason.BACKLOG.value] = (rate + left / max(self.settings.recover_s, start_s)) / c

    def _from_zero(self, signals: Signals, terms: dict[str, float]) -> DesiredReplicas:
        needed = _largest(terms)[1]
        self._down.look(signals.at_s, needed)
        if signals.waiting or signals.running:
            return DesiredReplicas(max(1, math.ceil(needed - _ROUNDING)), PolicyReason.WAKE, terms)
        ahead = terms.get(PolicyReason.FORECAST.value, 0.0)
        if ahead >= 0.5:
            return DesiredReplicas(math.ceil(ahead), PolicyReason.FORECAST, terms)
        return DesiredReplicas(0, PolicyReason.STEADY, terms)

    def _fewer(self, signals: Signals, needed: float, terms: dict[str, float]) -> DesiredReplicas:
        applied, now = signals.applied, signals.at_s
        margin = self.settings.margin
        if applied == 1 and self._is_idle(signals, terms):
            return DesiredReplicas(0, PolicyReason.IDLE, terms)
        if needed + margin > applied - 1 + _ROUNDING:
            return DesiredReplicas(
                applied, PolicyReason.STEADY if needed > applied - 1 or applied == 1 else PolicyReason.NO_ROOM, terms
            )
        span_s = self._span_s * self._cooldown.patience(now)
        found = self._sufficed(now, span_s)
        if found is None:
            return DesiredReplicas(applied, PolicyReason.COOLING, terms)
        maximum, fewer = found
        terms["needed_most"] = maximum
        if fewer >= applied:
            return DesiredReplicas(
                applied, PolicyReason.COOLING if maximum < applied - 1 else PolicyReason.NO_ROOM, terms
            )
        if self._cooldown.small(fewer):
            span_s = max(span_s, self._cooldown.within_s)
            found = None if self._cooldown.rests(now) else self._sufficed(now, span_s)
            if found is None or found[1] >= applied:
                return DesiredReplicas(applied, PolicyReason.RESTING, terms)
            fewer = found[1]
        soon = self._sufficed(now, max(span_s - SETTLE_S, min(span_s, SETTLE_S)))
        if soon is not None and not self._cooldown.settled(now, fewer, soon[1]):
            return DesiredReplicas(applied, PolicyReason.COOLING, terms)
        allowed = self._traffic_drop.allowed(now, self._cooldown.within_s, fewer)
        return DesiredReplicas(
            allowed, PolicyReason.CONSOLIDATE if allowed == fewer else PolicyReason.TRAFFIC_DROP, terms
        )

    def _sufficed(self, now: float, span_s: float) -> tuple[float, int] | None:
        """The largest need of the last `span_s` seconds, and how few carry it; None where less was seen."""
        maximum, max_load = self._down.maximum(now, span_s), self._load.maximum(now, span_s)
        if maximum is None or max_load is None:
            return None
        return maximum, max(
            1, math.ceil(maximum + self.settings.margin - _ROUNDING), self._cooldown.minimum(now, max_load)
        )

    def _may_wait(self, now: float, policy_reason: PolicyReason, more: int) -> bool:
        """Whether a step up is not worth a change of the number so soon after another."""
        cooldown = self._cooldown
        return (
            policy_reason in (PolicyReason.DEMAND, PolicyReason.OCCUPANCY)
            and cooldown.small(more)
            and cooldown.rests(now)
            and not cooldown.presses
        )

    def _is_idle(self, signals: Signals, terms: dict[str, float]) -> bool:
        """Whether nothing has come for so long that the last replica may go, and nothing is foretold."""
        idle_s = signals.at_s - max(self._demand.last_arrival_s, self._began_s)
        busy = signals.waiting or signals.running or terms.get(PolicyReason.FORECAST.value, 0.0) >= 0.5
        return not busy and idle_s >= self.settings.zero_after_s * self._cooldown.patience(signals.at_s)

    @property
    def _span_s(self) -> float:
        return max(self.settings.down_after_s, self.settings.down_starts * self._start_ups.expected_s)


_NEEDS = (PolicyReason.DEMAND, PolicyReason.FORECAST, PolicyReason.BACKLOG, PolicyReason.OCCUPANCY)


def _largest(terms: dict[str, float]) -> tuple[PolicyReason, float]:
    """The term that needs most; nothing needs nothing."""
    needs = [(terms[policy_reason.value], policy_reason) for policy_reason in _NEEDS if policy_reason.value in terms]
    needed, policy_reason = max(needs, key=lambda one: one[0], default=(0.0, PolicyReason.STEADY))
    return policy_reason, needed
