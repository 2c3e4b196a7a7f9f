"""The autoscaler of one model: asks a policy and applies the limits. Ray Serve, the simulator, a shadow and `tune` use
the same class.

    desired   = policy(signals)                                      if it fails, the number stays (POLICY_FAILED)
    bounded   = within [minimum, min(maximum, ceiling)] of that time of the week (`schedule.py`),
                held or pinned by an operator, no more than can be scheduled
    requested = bounded, with rate limits over 60 s; no step down while a replica is unresponsive, or a forecast failed

Each failure is a named condition with a safe answer: the applied number stays. The platform may apply another number
than was requested (somebody else wrote the target, a deploy reset it), so each decision starts from the applied one.
"""

import math
import operator
from collections import deque
from dataclasses import replace

from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyReason, ScalingPolicy
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision
from autoscaling.scaler.schedule import BoundsInForce, ScheduleFollower
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control, ControlKind, in_force
from deployments.scheduling.replica import ReplicaStatus


class Room:
    """How many replicas there is room for: as many as the platform says. A replica that has not started for long counts
    as impossible for a while."""

    def __init__(self) -> None:
        self._waiting_since_s = math.inf
        self._there = 0
        self._maximum: int | None = None
        self._until_s = 0.0

    def look(self, signals: Signals, bounds: Bounds) -> None:
        """Replicas begin to start within `unschedulable_s`, or not at all. One that has begun has its node, however
        long its model takes to come; when it leaves that state without getting ready, the time begins again."""
        there = sum(replica.status != ReplicaStatus.DRAINING for replica in signals.replicas) + signals.begun
        if self._maximum is not None and (there > self._maximum or signals.at_s >= self._until_s):
            self._maximum = None
        if signals.applied <= there or there != self._there:
            self._waiting_since_s = math.inf
        if signals.applied > there:
            self._waiting_since_s = min(self._waiting_since_s, signals.at_s)
        self._there = there
        if signals.at_s - self._waiting_since_s >= bounds.unschedulable_s:
            self._maximum, self._until_s, self._waiting_since_s = there, signals.at_s + bounds.retry_s, math.inf

    def maximum(self, signals: Signals) -> int | None:
        """None while no limit is known."""
        known = [maximum for maximum in (self._maximum, signals.schedulable) if maximum is not None]
        return min(known) if known else None


_RATE_SPAN_S = 60.0


class Autoscaler:
    """`bounds` may be replaced at any time. `start_up_s`: how long a start takes, before one was seen."""

    def __init__(self, policy: ScalingPolicy, bounds: Bounds, start_up_s: float = 60.0) -> None:
        self.policy = policy
        self.bounds = bounds
        self.follower = ScheduleFollower(start_up_s)
        self.foreign_writes = 0
        """How often something else changed the number."""
        self._requested: int | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._unresponsive_since_s: float | None = None
        self._room = Room()

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        """`signals.at_s` never runs backwards. If the facts are too old, the number stays, unless an operator orders
        another."""
        self._look(signals)
        controls = in_force(controls, signals.unix_s)
        if signals.age_s > self.bounds.stale_s:
            return self._answer(signals, None, self._commanded(signals.applied, controls), Limit.STALE)
        try:
            desired = self._asked(signals)
        except Exception as error:  # a faulty policy must not change the number of replicas
            return self._answer(
                signals,
                None,
                self._commanded(signals.applied, controls),
                Limit.POLICY_FAILED,
                f"{type(error).__name__}: {error}",
            )
        return self._limited(signals, desired, controls)

    def _asked(self, signals: Signals) -> DesiredReplicas:
        """The policy's number, plus the cordoned replicas: they are applied but do nothing, so the policy does not see
        them."""
        cordoned = signals.count(ReplicaStatus.CORDONED)
        desired = self.policy.decide(
            replace(signals, applied=max(0, signals.applied - cordoned)) if cordoned else signals
        )
        checked = _checked(self.policy.name, desired)
        return replace(checked, replicas=checked.replicas + cordoned) if cordoned else checked

    def _look(self, signals: Signals) -> None:
        if self._requested is not None and signals.applied != self._requested:
            self.foreign_writes += 1
        if signals.age_s > self.bounds.stale_s:
            return  # old facts do not show that a replica has gone
        if not signals.count(ReplicaStatus.UNRESPONSIVE):
            self._unresponsive_since_s = None
        elif self._unresponsive_since_s is None:
            self._unresponsive_since_s = signals.at_s
        self._room.look(signals, self.bounds)
        if self.bounds.schedule is not None:
            self.follower.look(signals)

    def _limited(self, signals: Signals, desired: DesiredReplicas, controls: tuple[Control, ...]) -> ScalingDecision:
        bounds = self._bounds_now(signals)
        number, limit, entry = self._bounded(desired.replicas, bounds)
        commanded, command = self._commanded(number, controls)
        if command is not None:
            number, limit = commanded, command
        maximum = self._room.maximum(signals)
        if maximum is not None and number > max(maximum, signals.applied if limit is Limit.PINNED else 0):
            number, limit = max(maximum, min(bounds.minimum, number)), Limit.UNSCHEDULABLE
        number, limit = self._rated(signals, number, limit)
        decision = self._answer(signals, desired, (number, limit), None)
        return decision if entry is None else replace(decision, scheduled=entry)

    def _bounds_now(self, signals: Signals) -> BoundsInForce:
        """Cordoned replicas are on top of them, as far as the ceiling pays for it."""
        bounds, cordoned = self.bounds, signals.count(ReplicaStatus.CORDONED)
        now = BoundsInForce(bounds.minimum, bounds.maximum)
        if bounds.schedule is not None:
            given, period_s = (bounds.minimum, bounds.maximum), self.policy.period_s
            now = self.follower.bounds(bounds.schedule, given, bounds.up_per_min, period_s, signals)
        least = now.minimum + cordoned if bounds.ceiling is None else min(now.minimum + cordoned, bounds.ceiling)
        return replace(now, minimum=max(now.minimum, least), maximum=now.maximum + cordoned)

    def _bounded(self, number: int, bounds: BoundsInForce) -> tuple[int, Limit | None, str | None]:
        """The number within the bounds, which one decided, and the entry of the schedule that it comes from."""
        ceiling = self.bounds.ceiling
        if number < bounds.minimum:
            entry = bounds.minimum_by
            return bounds.minimum, Limit.MIN_REPLICAS if entry is None else Limit.SCHEDULED_MIN, entry
        if ceiling is not None and number > max(bounds.minimum, ceiling) and ceiling <= bounds.maximum:
            return max(bounds.minimum, ceiling), Limit.COST_CEILING, None
        if number > bounds.maximum:
            entry = bounds.maximum_by
            return bounds.maximum, Limit.MAX_REPLICAS if entry is None else Limit.SCHEDULED_MAX, entry
        return number, None, None

    @staticmethod
    def _commanded(number: int, controls: tuple[Control, ...]) -> tuple[int, Limit | None]:
        """The last pin decides, else the largest hold."""
        pins = [control for control in controls if control.kind is ControlKind.PIN]
        if pins:
            return pins[-1].replicas, Limit.PINNED
        held = max((control.replicas for control in controls if control.kind is ControlKind.HOLD), default=0)
        return (held, Limit.HELD) if number < held else (number, None)

    def _rated(self, signals: Signals, number: int, limit: Limit | None) -> tuple[int, Limit | None]:
        """Operators' orders have no rate limit. No replica is removed while one is unresponsive, or the forecast
        failed."""
        if limit in (Limit.PINNED, Limit.HELD):
            return number, limit
        applied, now = signals.applied, signals.at_s
        if (
            number < applied
            and self._unresponsive_since_s is not None
            and now - self._unresponsive_since_s < self.bounds.unresponsive_s
        ):
            return applied, Limit.UNRESPONSIVE
        if number < applied and signals.forecast_failed:
            return applied, Limit.FORECAST_FAILED
        while self._steps and self._steps[0][0] <= now - _RATE_SPAN_S:
            self._steps.popleft()
        if number > applied:
            up = sum(step for _, step in self._steps if step > 0)
            maximum = applied + max(int(min(self.bounds.up_per_min, 1e9)) - up, 0 if up else 1)
            return (number, limit) if number <= maximum else (maximum, Limit.UP_RATE)
        if number < applied:
            down = -sum(step for _, step in self._steps if step < 0)
            fewest = applied - max(int(min(self.bounds.down_per_min, 1e9)) - down, 0 if down else 1)
            return (number, limit) if number >= fewest else (fewest, Limit.DOWN_RATE)
        return number, limit

    def _answer(
        self,
        signals: Signals,
        desired: DesiredReplicas | None,
        number: tuple[int, Limit | None],
        why: Limit | None,
        error: str | None = None,
    ) -> ScalingDecision:
        requested, limit = number
        if requested != signals.applied:
            self._steps.append((signals.at_s, requested - signals.applied))
        self._requested = requested
        policy_reason: PolicyReason | None = None if desired is None else desired.policy_reason
        return ScalingDecision(
            signals.at_s,
            signals.applied,
            signals.ready,
            requested,
            None if desired is None else desired.replicas,
            policy_reason,
            limit or why,
            {} if desired is None else dict(desired.terms),
            error,
            None if desired is None else desired.concern,
        )


def _checked(policy: str, desired: DesiredReplicas) -> DesiredReplicas:
    """The policy's answer, in the types that are logged and compared. Raises TypeError and ValueError for an invalid
    number, reason or term."""
    replicas = operator.index(desired.replicas)
    if replicas < 0:
        raise ValueError(f"policy {policy} wants {replicas} replicas; allowed: 0 or more")
    terms = {str(name): float(value) for name, value in desired.terms.items()}
    for name, value in terms.items():
        if math.isnan(value):
            raise ValueError(f"policy {policy}: term {name} = nan; allowed: a number")
    return DesiredReplicas(
        replicas,
        PolicyReason(desired.policy_reason),
        terms,
        None if desired.concern is None else Concern(desired.concern),
    )


_EARLY = 0.25
"""A policy is asked at the reading nearest to its time: early by at most this share of the readings' distance."""


class Pace:
    """When to decide again: when the period has passed, or at once after an operator's order or a foreign change of the
    number. The controller's turns and the policies that are asked in them share this rule."""

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._requested: int | None = None
        self._controls: tuple[Control, ...] = ()

    def due(self, at_s: float, early_s: float, applied: int, controls: tuple[Control, ...]) -> bool:
        """Whether to decide at `at_s`, at most `early_s` before the end of the period."""
        return applied != self._requested or controls != self._controls or at_s + early_s >= self._due_s

    def decided(self, at_s: float, period_s: float, requested: int, controls: tuple[Control, ...]) -> None:
        """`requested` stands for `period_s` from now on."""
        self._due_s, self._requested, self._controls = at_s + period_s, requested, controls

    def hurry(self) -> None:
        """Makes the next moment due."""
        self._due_s = -math.inf


class PacedScaler:
    """Called at every reading; asks `autoscaler` as often as its policy wants, and repeats the last number meanwhile.

    After an operator's order or a foreign change of the number the policy is asked at once. Facts that are too old are
    reported at once, without asking the policy.
    """

    def __init__(self, autoscaler: Autoscaler) -> None:
        self.autoscaler = autoscaler
        self._pace = Pace()
        self._read_s = -math.inf
        self._last: ScalingDecision | None = None

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        now, last, period_s = signals.at_s, self._last, self.autoscaler.policy.period_s
        controls = in_force(controls, signals.unix_s)
        early_s = _EARLY * min(now - self._read_s, period_s)
        self._read_s = now
        if signals.age_s > self.autoscaler.bounds.stale_s:
            return self.autoscaler.decide(signals, controls)
        if last is not None and not self._pace.due(now, early_s, signals.applied, controls):
            return replace(last, at_s=now, applied=signals.applied, ready=signals.ready)
        self._last = self.autoscaler.decide(signals, controls)
        self._pace.decided(now, period_s, self._last.requested, controls)
        return self._last

    def hurry(self) -> None:
        """Asks at the next moment, because the policy or its bounds have changed."""
        self._pace.hurry()
